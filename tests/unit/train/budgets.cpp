// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Budgets are of a rank and a tier, to the byte; what the ranks of a machine need together is held against its memory,
// with the files that are in it.
#include <doctest/doctest.h>

#include <cerrno>
#include <cstddef>
#include <exception>
#include <string>

#include "belay/backend/host.hpp"
#include "belay/device/tier_file.hpp"
#include "belay/step.hpp"
#include "belay/train/launch.hpp"

using belay::file_bytes;
using belay::tier;

namespace {

// Leases something of every tier; a file's shard is larger on the last rank.
auto body_of(file_bytes of_file) {
  return [of_file](auto& rank, auto& run) {
    const int last = rank.size() - 1;
    static_cast<void>(run.template lease<float>(tier::device, 1000, "values"));
    static_cast<void>(run.template lease<float>(tier::pinned, 2000, "state"));
    static_cast<void>(run.template lease<float>(tier::host, 3000, "batch"));
    run.charge_shard(
        tier::file, [last](int number) { return number == last ? std::size_t{8192} : std::size_t{4096}; }, "moments",
        of_file);
    CHECK(run.meters()[tier::file].live_bytes() == (rank.number() == last ? 8192 : 4096));
  };
}

}  // namespace

TEST_CASE("exactly the planned bytes of a tier are accepted, and one byte less is refused") {
  for (const int ranks : {1, 3}) {
    const auto body = body_of(file_bytes::on_disk);
    const belay::rehearsal_result planned = belay::rehearse(ranks, body);
    for (const tier of : {tier::device, tier::pinned, tier::host, tier::file}) {
      CAPTURE(std::string(name(of)));
      belay::launch_options options;
      options.budget[of] = planned.plan.ranks().back().peak_bytes(of);
      CHECK(options.budget[of] > 0);
      belay::launch(belay::host::world{ranks}, body, options);
      --options.budget[of];
      try {
        belay::launch(belay::host::world{ranks}, body, options);
        FAIL("a byte too few");
      } catch (const belay::plan_refused& refusal) {
        CHECK(refusal.shortage().where_it_is == of);
        CHECK(refusal.shortage().needed_bytes == options.budget[of] + 1);
        if (of == tier::file) CHECK(refusal.shortage().rank == ranks - 1);
      }
    }
  }
}

TEST_CASE("a step that is larger than the rehearsed one says that the first was smaller, wherever it has no room") {
  enum class in { activations, step_memory, windows };
  for (const in where_it_is : {in::activations, in::step_memory, in::windows}) {
    CAPTURE(static_cast<int>(where_it_is));
    std::size_t reached = 0;
    const auto body = [&](auto& rank, auto& run) {
      auto& beside = run.step_memory("beside");
      auto& windows = run.windows(rank.world());
      for (auto number : run.steps(3)) {
        belay::step step{run.engine()};
        if (!run.rehearsing()) reached = number;
        for (const in each : {in::activations, in::step_memory, in::windows}) {
          const std::size_t count = each == where_it_is && number == 2 ? 4096 : 64;
          belay::lease_chain chain;
          auto& leases = each == in::activations ? run.engine().activations() : beside;
          if (each == in::windows)
            static_cast<void>(windows.lease(count, "rows"));
          else
            static_cast<void>(leases.lease_bytes(count, chain));
          leases.release(chain);
        }
        step.cut_off();
      }
    };
    CHECK_THROWS_WITH_AS(belay::launch(belay::host::world{1}, body),
                         doctest::Contains("bytes left in the budget: it was planned for the first step, which a "
                                           "rehearsal runs: that was smaller, so begin with the largest"),
                         belay::budget_error);
    CHECK(reached == 2);
  }
}

TEST_CASE("files in memory count as memory of their machine, and files on a disk do not") {
  for (const int ranks : {1, 3}) {
    std::size_t without = 0;
    for (const file_bytes of_file : {file_bytes::on_disk, file_bytes::in_memory}) {
      const auto body = body_of(of_file);
      const belay::rehearsal_result planned = belay::rehearse(ranks, body);
      belay::launch_options options;
      options.available = 0;
      for (const belay::rank_plan& each : planned.plan.ranks()) options.available += belay::memory_of(each).saturated();
      belay::launch(belay::host::world{ranks}, body, options);
      --options.available;
      CHECK_THROWS_AS(belay::launch(belay::host::world{ranks}, body, options), belay::plan_refused);
      const std::size_t files = 4096 * (static_cast<std::size_t>(ranks) + 1);
      if (of_file == file_bytes::on_disk) without = options.available;
      if (of_file == file_bytes::in_memory) CHECK(options.available == without + files);
    }
  }
}

TEST_CASE("of ranks that a launcher has started one tells what all have alike, and each what its own file refuses") {
  using belay::tier_file_error;
  using belay::tier_file_operation;
  const belay::launcher_environment first{"openmpi", 0, 2, 0, 2}, second{"openmpi", 1, 2, 1, 2};
  const auto told = [&](const std::exception& error) {
    return std::string(belay::should_report(error, first) ? "0" : "") +
           (belay::should_report(error, second) ? "1" : "");
  };
  const auto of_tier = [](tier_file_operation what, int code) {
    return tier_file_error("/a/folder", {what, belay::fault_of(code), code, 0, 4096, 0, {}}, {});
  };
  CHECK(told(belay::input_error("a flag")) == "0");
  CHECK(told(belay::file_error("/a/file", 0, "is missing")) == "0");
  CHECK(told(of_tier(tier_file_operation::open, ENOENT)) == "0");
  CHECK(told(of_tier(tier_file_operation::open, EMFILE)) == "01");
  CHECK(told(of_tier(tier_file_operation::allocate, ENOSPC)) == "01");
  CHECK(told(of_tier(tier_file_operation::write, EIO)) == "01");
  CHECK(told(belay::usage_error("a slip", {})) == "01");
}
