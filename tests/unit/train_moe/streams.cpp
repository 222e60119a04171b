// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Which streams a run has: what its flag says, or a choice that all its ranks make alike. And what a run on a GPU
// cannot have, and which steps a trace is of.
#include <doctest/doctest.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "belay/core/error.hpp"
#include "train_moe/command_line.hpp"
#include "train_moe/stream_rule.hpp"

using belay::stream_policy;
using train_moe::streams_by_rule;

TEST_CASE("kernels are queued where a rank has three cores") {
  CHECK(streams_by_rule(2, 6, {}).policy == stream_policy::queued);
  CHECK(streams_by_rule(2, 6, {}).why == "6 cores for 2 ranks, 3 a rank are enough");
  CHECK(streams_by_rule(2, 5, {}).policy == stream_policy::immediate);
  CHECK(streams_by_rule(2, 5, {}).why == "5 cores for 2 ranks, fewer than 3 a rank");
  CHECK(streams_by_rule(1, 1, {}).why == "1 core for 1 rank, fewer than 3 a rank");
  CHECK(streams_by_rule(2, 6, {.launcher = "openmpi", .size = 2, .local_size = 2}).policy == stream_policy::queued);
}

TEST_CASE("ranks of several machines, which may have other cores, do not count their own") {
  // Two on one machine and one on another would choose differently, and then wait for each other.
  for (const int local : {1, 2}) {
    const auto chosen = streams_by_rule(3, 64, {.launcher = "openmpi", .size = 3, .local_size = local});
    CHECK(chosen.policy == stream_policy::immediate);
    CHECK(chosen.why == "ranks may be on several machines");
  }
  CHECK(streams_by_rule(3, 64, {.launcher = "pmi", .size = 3}).policy == stream_policy::immediate);
}

namespace {

// Nothing where the trainer ends with 2.
std::optional<train_moe::command_line> parsed(std::vector<std::string> flags) {
  flags.insert(flags.begin(), "train_moe");
  std::vector<char*> pointers;
  for (std::string& flag : flags) pointers.push_back(flag.data());
  int code = 0;
  auto line = train_moe::parse(static_cast<int>(pointers.size()), pointers.data(), code);
  CHECK(code == (line ? 0 : 2));
  return line;
}

}  // namespace

TEST_CASE("--streams says the policy and its seed, and no rule is followed") {
  for (const char* flag :
       {"immediate", "queued", "adversarial:0", "adversarial:7", "adversarial:18446744073709551615"}) {
    CAPTURE(std::string(flag));
    const auto line = parsed({"--streams", flag});
    REQUIRE(line);
    CHECK(train_moe::streams_text(line->run.streams) == flag);
    CHECK(line->why_streams == "");
  }
  CHECK(parsed({"--streams", "adversarial"})->run.streams.seed == 0);
  CHECK(parsed({})->why_streams != "");
}

TEST_CASE("policies and seeds that are none are refused, and late streams with ranks that are no threads") {
  for (const char* flag : {"", "late", "queued:1", "adversarial:", "adversarial:x", "adversarial:-1", "adversarial:7z",
                           "adversarial:18446744073709551616"}) {
    CAPTURE(std::string(flag));
    CHECK(!parsed({"--streams", flag}));
  }
  for (const char* backend : {"processes", "mpi"}) {
    CHECK(!parsed({"--backend", backend, "--streams", "adversarial"}));
    CHECK(!parsed({"--streams", "adversarial:7", "--backend", backend}));
    CHECK(parsed({"--streams", "queued", "--backend", backend}));
  }
}

TEST_CASE("graphs are of ranks that have a device alone, and have nothing in files") {
  const auto graphs = [](std::vector<std::string> flags) {
    flags.emplace_back("--graph");
    const auto line = parsed(flags);
    return line && line->run.graphs == belay::graph_use::captured;
  };
  CHECK(graphs({"--device", "cuda", "--mesh", "pp=1"}));
  CHECK(!graphs({"--mesh", "pp=1"}));
  CHECK(!graphs({"--device", "cuda", "--mesh", "ep=2"}));
  CHECK(!graphs({"--device", "cuda", "--mesh", "pp=2", "--devices", "shared"}));
  CHECK(graphs({"--device", "cuda", "--mesh", "pp=2,dp=2", "--devices", "own", "--zero", "3"}));
  CHECK(graphs({"--device", "cuda", "--mesh", "pp=1", "--zero", "3", "--offload",
                "optimizer:host,parameters:pinned,gradients:host,activations:pinned"}));
  CHECK(graphs({"--device", "cuda", "--mesh", "dp=4", "--shard-group", "2", "--micro-batches", "8"}));
  for (const char* what : {"optimizer", "activations"})
    CHECK(!graphs(
        {"--device", "cuda", "--mesh", "pp=1", "--tier-dir", "/tmp", "--offload", what + std::string(":file")}));
  auto found = *parsed({"--device", "cuda", "--mesh", "dp=2", "--graph"});  // whose devices are not known yet
  found.placed = {belay::cuda::rank_devices::one_each, "one for each rank"};
  CHECK_NOTHROW(train_moe::expect_graphs_fit(found));
  found.placed = {belay::cuda::rank_devices::one_shared, "2 ranks share device 0 (1 GPU for 2 ranks)"};
  CHECK_THROWS_WITH_AS(train_moe::expect_graphs_fit(found),
                       doctest::Contains("--graph where 2 ranks share device 0 (1 GPU for 2 ranks): "),
                       belay::input_error);
}

TEST_CASE("without --graph, or with auto, steps are captured where nothing is in the way; off leaves them") {
  using flags_type = std::vector<std::string>;
  const auto captured = [](flags_type flags, const flags_type& more) {
    flags.insert(flags.end(), more.begin(), more.end());
    const auto line = parsed(flags);
    REQUIRE(line);
    return line->run.graphs == belay::graph_use::captured;
  };
  const flags_type one{"--device", "cuda", "--mesh", "pp=1"};
  for (const flags_type& automatic : {flags_type{}, flags_type{"--graph", "auto"}, flags_type{"--graph=auto"}}) {
    CHECK(captured(one, automatic));
    CHECK(captured({"--device", "cuda", "--mesh", "dp=2", "--devices", "own"}, automatic));
    CHECK(!captured({"--mesh", "pp=1"}, automatic));
    CHECK(!captured({"--device", "cuda", "--mesh", "ep=2"}, automatic));
    CHECK(!captured({"--device", "cuda", "--mesh", "pp=2", "--devices", "shared"}, automatic));
    CHECK(!captured({"--device", "cuda", "--mesh", "pp=1", "--tier-dir", "/tmp", "--offload", "optimizer:file"},
                    automatic));
    CHECK(!captured({"--device", "cuda", "--mesh", "pp=1", "--trace", "t.json"}, automatic));
  }
  CHECK(!captured(one, {"--graph", "off"}));
  CHECK(captured(one, {"--graph", "on"}));
  CHECK(captured(one, {"--graph", "--steps", "3"}));
  CHECK(captured({"--graph"}, one));
  CHECK(!parsed({"--device", "cuda", "--graph", "perhaps"}));
  auto found = *parsed({"--device", "cuda", "--mesh", "dp=2"});
  found.placed = {belay::cuda::rank_devices::one_shared, "2 ranks share device 0 (1 GPU for 2 ranks)"};
  train_moe::expect_graphs_fit(found);
  CHECK(found.run.graphs == belay::graph_use::none);
}

TEST_CASE("TF32 and ranges of NVTX are of GPUs, and are not there unless they are asked for") {
  using train_moe::command_line;
  const auto line = parsed({"--device", "cuda", "--tf32", "--nvtx"});
  REQUIRE(line);
  CHECK(line->products == belay::cuda::float_products::tf32);
  CHECK(line->ranges == command_line::call_ranges::nvtx);
  CHECK(parsed({"--device", "cuda"})->products == belay::cuda::float_products::exact);
  CHECK(parsed({"--device", "cuda"})->ranges == command_line::call_ranges::none);
  for (const char* flag : {"--tf32", "--nvtx"}) {
    CHECK(!parsed({flag}));
    CHECK(!parsed({"--device", "host", flag}));
  }
}

TEST_CASE("cuDNN's attention is of threads that share a GPU, in bf16, and is not there unless it is asked for") {
  using form = train_moe::command_line::attention_form;
  CHECK(parsed({"--device", "cuda", "--dtype", "bf16"})->attention == form::own);
  CHECK(parsed({"--device", "cuda", "--dtype", "bf16", "--attention", "own"})->attention == form::own);
  const std::vector<std::string> good{"--device", "cuda", "--dtype", "bf16", "--attention", "cudnn"};
  REQUIRE(parsed(good));
  CHECK(parsed(good)->attention == form::cudnn);
  CHECK(!parsed({"--dtype", "bf16", "--attention", "cudnn"}));
  CHECK(!parsed({"--device", "cuda", "--attention", "cudnn"}));
  CHECK(!parsed({"--device", "cuda", "--dtype", "bf16", "--attention", "flash"}));
  for (const std::vector<std::string>& more :
       {std::vector<std::string>{"--devices", "own"}, {"--backend", "processes"}}) {
    std::vector<std::string> all = good;
    all.insert(all.end(), more.begin(), more.end());
    CHECK(!parsed(all));
  }
}

TEST_CASE("what a run on a GPU cannot have is refused by its flag") {
  CHECK(parsed({})->device == train_moe::device_kind::host);
  CHECK(!parsed({"--device", "gpu"}));
  const std::vector<std::string> good{"--device", "cuda", "--mesh", "pp=2,ep=2", "--zero", "3"};
  const auto line = parsed(good);
  REQUIRE(line);
  CHECK(line->device == train_moe::device_kind::cuda);
  CHECK(line->why_streams == "");
  using flags_type = std::vector<std::string>;
  for (const char* backend : {"threads", "processes", "mpi"})
    CHECK(parsed({"--device", "cuda", "--devices", "own", "--backend", backend})->devices ==
          train_moe::device_choice::own);
  CHECK(parsed({"--device", "cuda", "--devices", "shared"})->devices == train_moe::device_choice::shared);
  CHECK(!parsed({"--devices", "own"}));
  for (const flags_type& bad : {flags_type{"--streams", "queued"}, flags_type{"--freeze", "experts"},
                                flags_type{"--devices", "shared", "--backend", "processes"},
                                flags_type{"--devices", "shared", "--backend", "mpi"}, flags_type{"--devices", "2"}}) {
    CAPTURE(bad[0]);
    std::vector<std::string> flags = good;
    flags.insert(flags.end(), bad.begin(), bad.end());
    CHECK(!parsed(flags));
  }
}

TEST_CASE("threads have a GPU each where there are enough, and else share one; processes never share") {
  using train_moe::device_choice;
  using train_moe::nccl_support;
  using train_moe::placed_threads;
  const auto own = placed_threads(device_choice::automatic, 4, 8, nccl_support::compiled);
  CHECK(own.own());
  CHECK(own.text == "one for each rank, over NCCL (8 GPUs for 4 ranks)");
  CHECK(placed_threads(device_choice::own, 1, 1, nccl_support::compiled).own());
  CHECK(train_moe::placed_processes(nccl_support::compiled).own());
  const auto few = placed_threads(device_choice::automatic, 4, 3, nccl_support::compiled);
  CHECK(!few.own());
  CHECK(few.text == "4 ranks share device 0 (3 GPUs for 4 ranks)");
  CHECK(placed_threads(device_choice::automatic, 2, 2, nccl_support::absent).text ==
        "2 ranks share device 0 (2 GPUs for 2 ranks, but the program was built without NCCL)");
  CHECK(placed_threads(device_choice::shared, 2, 2, nccl_support::compiled).text ==
        "2 ranks share device 0 (--devices shared)");
  CHECK(placed_threads(device_choice::automatic, 1, 2, nccl_support::compiled).text == "device 0");
  CHECK_THROWS_WITH_AS(static_cast<void>(placed_threads(device_choice::own, 2, 1, nccl_support::compiled)),
                       "belay: --devices own: there is 1 GPU for 2 ranks: take fewer ranks, or --devices shared",
                       belay::input_error);
  CHECK_THROWS_WITH_AS(static_cast<void>(placed_threads(device_choice::own, 2, 2, nccl_support::absent)),
                       doctest::Contains("built without NCCL"), belay::backend_error);
  CHECK_THROWS_AS(static_cast<void>(train_moe::placed_processes(nccl_support::absent)), belay::backend_error);
}

TEST_CASE("launched processes with fewer GPUs than ranks are refused, and told which rank has none and what to do") {
  using train_moe::nccl_support;
  using train_moe::placed_processes;
  const belay::launcher_environment two{.launcher = "torchrun", .rank = 0, .size = 2, .local_size = 2};
  CHECK(placed_processes(nccl_support::compiled, two, 2).own());
  CHECK(placed_processes(nccl_support::compiled, two, 8).own());
  for (const int rank : {0, 1}) {  // both alike: none waits for the other
    belay::launcher_environment mine = two;
    mine.rank = mine.local_rank = rank;
    CHECK_THROWS_WITH_AS(
        static_cast<void>(placed_processes(nccl_support::compiled, mine, 1)),
        "belay: --device cuda: rank 1 has no GPU: a process sees 1 GPU for 2 ranks of this machine, and "
        "each that is a process takes one of its own: take fewer ranks, or --backend threads, whose "
        "ranks can share one",
        belay::input_error);
  }
  // What other machines have, and how many ranks are here, the world over NCCL finds out.
  for (const int local : {0, 1}) {
    belay::launcher_environment some = two;
    some.local_size = local;
    CHECK(placed_processes(nccl_support::compiled, some, 0).own());
  }
  CHECK_THROWS_AS(static_cast<void>(placed_processes(nccl_support::absent, two, 1)), belay::backend_error);
}

TEST_CASE("a trace is of steps 2 to 4, of a shorter run of its last ones, and of none where there is none") {
  const auto traced = [](const char* steps) {
    const auto line = parsed({"--steps", steps, "--trace", "t.json"});
    REQUIRE(line);
    return std::pair(line->trace_steps.first, line->trace_steps.last);
  };
  CHECK(traced("9") == std::pair<std::uint64_t, std::uint64_t>(2, 4));
  CHECK(traced("3") == std::pair<std::uint64_t, std::uint64_t>(2, 3));
  CHECK(traced("1") == std::pair<std::uint64_t, std::uint64_t>(1, 1));
  CHECK(!parsed({"--steps", "0", "--trace", "t.json"}));
  CHECK(!parsed({"--steps", "1", "--trace", "t.json", "--trace-steps", "2-4"}));
}
