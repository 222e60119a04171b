// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Steps of a trainer that are captured as graphs and launched, over a device of the host: they have the bits of steps
// that are not, under a learning rate that changes, and what cannot be captured is refused.
#include "belay/train/step_graphs.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "belay/backend/cuda.hpp"
#include "belay/backend/host.hpp"
#include "belay/train/launch.hpp"
#include "fakes/cuda/fake_api.hpp"
#include "fakes/cuda/forgetful_api.hpp"
#include "unit/train/support/directory.hpp"
#include "unit/train/support/graph_trainer.hpp"

using belay::tier;
using fakes::work_order;
using namespace graph_trainer;

namespace {

template <class T>
record on_host(trial what) {
  what.use = graph_use::none;
  what.state = what.gradients = what.parameters = what.activations = tier::device;
  record out;
  belay::launch<belay::host_kit<>>(belay::host::world(1), body<T>(what, out));
  return out;
}
template <class T>
record on_device(const trial& what, const fakes::device_options& how) {
  fakes::device_api api(how);
  record out;
  belay::launch(belay::cuda::world(api, belay::host::world(1), {.slot_bytes = 512}), body<T>(what, out));
  CHECK(api.empty());
  return out;
}
const fakes::device_options every_order[] = {
    {work_order::eager}, {work_order::late}, {work_order::random, 1}, {work_order::random, 2}};

template <class T>
void check_all() {
  for (const auto stage : {belay::zero_stage::none, belay::zero_stage::optimizer_state, belay::zero_stage::gradients,
                           belay::zero_stage::parameters}) {
    const trial what{.stage = stage};
    const record expected = on_host<T>(what);
    REQUIRE(expected.losses.size() == what.steps);
    CHECK(expected.losses[5] < expected.losses[0]);
    for (const fakes::device_options& how : every_order) {
      CHECK(on_device<T>({.use = graph_use::none, .stage = stage}, how).same_numbers(expected));
      const record launched = on_device<T>(what, how);
      CHECK(launched.same_numbers(expected));
      CHECK(launched.bodies == 2);
      CHECK(launched.launches == what.steps - 1);
    }
  }
}

// What lies in `lower`: 0 the optimizer's state, 1 activations, 2 gradients, 3 parameters, 4 all of them.
trial offloaded(trial what, std::size_t part, tier lower) {
  if (part == 0) what.hidden = 1400;  // more chunks of state than its ring has slots
  if (part == 0 || part == 4) what.state = lower;
  if (part == 1 || part == 4) what.activations = lower;
  if (part == 2 || part == 4) what.gradients = lower;
  if (part == 3 || part == 4) what.parameters = lower;
  return what;
}
template <class T>
void check_offloaded(belay::zero_stage stage, std::size_t part, tier lower, std::size_t number) {
  CAPTURE(part);
  CAPTURE(static_cast<int>(stage));
  CAPTURE(std::string(name(lower)));
  trial what = offloaded({.stage = stage}, part, lower);
  const record expected = on_host<T>(what);
  REQUIRE(expected.losses.size() == what.steps);
  for (const fakes::device_options& how : {every_order[1], every_order[2 + number % 2]}) {
    const record launched = on_device<T>(what, how);
    CHECK(launched.same_numbers(expected));
    CHECK(launched.bodies == 2);
    CHECK(launched.launches == what.steps - 1);
  }
  what.use = graph_use::none;
  CHECK(on_device<T>(what, every_order[1]).same_numbers(expected));
}

std::string refusal(const trial& what, int ranks = 1) {
  fakes::device_api api({work_order::late});
  record out;
  std::string words;
  try {
    belay::launch(belay::cuda::world(api, belay::host::world(ranks), {.slot_bytes = 512}), body<float>(what, out));
  } catch (const belay::error& problem) {
    words = problem.what();
  }
  CHECK(api.empty());
  return words;
}
void says(const std::string& text, const char* words) {
  CAPTURE(text);
  CHECK(text.find(words) != std::string::npos);
}

}  // namespace

TEST_CASE("20 steps of which 19 are launches have the bits of eager ones, in fp32") { check_all<float>(); }
TEST_CASE("20 steps of which 19 are launches have the bits of eager ones, in bf16") { check_all<belay::bf16>(); }

TEST_CASE(
    "what lies in tiers that copies reach is captured: 20 steps have the bits of a run that has all on a device") {
  using stage = belay::zero_stage;
  std::size_t number = 0;
  for (const tier lower : {tier::pinned, tier::host}) {
    check_offloaded<float>(stage::none, 0, lower, ++number);
    check_offloaded<float>(stage::optimizer_state, 1, lower, ++number);
    check_offloaded<float>(stage::gradients, 2, lower, ++number);
    check_offloaded<float>(stage::parameters, 3, lower, ++number);
    check_offloaded<float>(stage::parameters, 4, lower, ++number);
  }
  check_offloaded<belay::bf16>(stage::parameters, 4, tier::pinned, ++number);
}

TEST_CASE("a wait that what is captured leaves out is seen") {
  trial what = offloaded({.stage = belay::zero_stage::parameters}, 4, tier::pinned);
  what.steps = 4;
  const record expected = on_host<float>(what);
  // Whether a run that forgets the k-th wait of its captures ends with an error, or with other numbers; and its waits.
  const auto run_with = [&](fakes::forgets forgets, std::uint64_t k) {
    fakes::forgetful_api api({work_order::late}, forgets, k);
    record out;
    bool seen = false;
    try {
      belay::launch(belay::cuda::world(api, belay::host::world(1), {.slot_bytes = 512}), body<float>(what, out));
      seen = !out.same_numbers(expected);
    } catch (const belay::error&) {
      seen = true;
    }
    return std::pair(seen, api.captured_waits());
  };
  const auto [wrong, waits] = run_with(fakes::forgets::nothing, 0);
  CHECK_FALSE(wrong);
  REQUIRE(waits > 20);
  std::size_t seen = 0;  // many are for what another one waits for too
  for (std::uint64_t k = 1; k <= waits; ++k) seen += run_with(fakes::forgets::captured, k).first ? 1U : 0U;
  CHECK(seen > waits / 6);
}

TEST_CASE("a step that must be replayed is run as it is, and captured anew; so is one after drop") {
  const record expected = on_host<float>({});
  for (const fakes::device_options& how : every_order) {
    const record replayed = on_device<float>({.overflows_in = 7}, how);
    CHECK(replayed.same_numbers(expected));
    CHECK(replayed.bodies == 4);
    CHECK(replayed.launches == 19);  // 21 tries, of which 2 are not
    const record dropped = on_device<float>({.drops_in = 9}, how);
    CHECK(dropped.same_numbers(expected));
    CHECK(dropped.bodies == 4);
    CHECK(dropped.launches == 18);
    trial lower = offloaded({.stage = belay::zero_stage::parameters, .overflows_in = 7}, 4, tier::pinned);
    lower.drops_in = 15;
    const record both = on_device<float>(lower, how);
    CHECK(both.same_numbers(expected));
    CHECK(both.launches == 18);
  }
}

TEST_CASE("from the third step on a device is asked for copies, launches and events alone") {
  fakes::device_api api({work_order::late});
  record out;
  const trial what;
  belay::launch(belay::cuda::world(api, belay::host::world(1), {.slot_bytes = 512}),
                body<float>(what, out, [&] { return api.calls_so_far(); }));
  REQUIRE(out.ended.size() == what.steps);
  const auto from = [&](std::size_t step) {
    return api.calls().begin() + static_cast<std::ptrdiff_t>(out.ended[step]);
  };
  const std::set<std::string> asked(from(1), from(what.steps - 1));
  CHECK(asked == std::set<std::string>{"await", "copy", "launch", "query", "record"});
  CHECK(std::count(from(3), from(4), "launch") == 3);
  CHECK(std::count(from(3), from(4), "copy") == 5);  // batch, findings twice, divisor, scalars
}

TEST_CASE("a listener is told of each launch with the number of its step, and of layers where they are called") {
  struct launches_told final : belay::call_listener {
    void begin(const belay::call_under_way&) noexcept override { ++calls; }
    void end() noexcept override { ++calls; }
    void begin_launch(const char* part, std::uint64_t step) noexcept override {
      told.push_back("step " + std::to_string(step) + ": " + part);
    }
    void end_launch() noexcept override { told.push_back("over"); }
    std::vector<std::string> told;
    std::size_t calls = 0;
  } listener;
  const record got = on_device<float>({.steps = 4, .told = &listener}, {work_order::late});
  CHECK(got.launches == 3);
  std::vector<std::string> expected;
  for (const char* step : {"step 2: ", "step 3: ", "step 4: "})
    for (const char* part : {"micro-batches", "division and norm of gradients", "update"})
      expected.insert(expected.end(), {std::string(step) + part, "over"});
  CHECK(listener.told == expected);
  CHECK(listener.calls > 0);
}

TEST_CASE("a backward that is forgotten in what is captured is named as in a commit") {
  for (const std::size_t step : {std::size_t{1}, std::size_t{2}}) {
    const std::string said = refusal({.loses_in = step});
    says(said, belay::checked(belay::check_level::local) ? "1 obligation is still open" : "1 open obligation");
    says(said, "saved activation of layer 0");
  }
}

TEST_CASE("what is captured is a whole step, and keeps nothing of it") {
  says(refusal({.keeps_gradient = true}), "bytes of the step, such as a gradient, which no launch would keep");
  says(refusal({.runs_late = true}), "what is captured is a whole step");
}

TEST_CASE("what cannot be captured is refused by name before the first step") {
  says(refusal({.axes = {.expert = 2}}, 2), "experts are divided among 2 ranks, whose exchange waits for counts");
  says(refusal({}, 2), "2 ranks share a device, and meet on the host in each operation, which no graph has");
  const train_bench::directory folder;
  const auto in_file = [&](belay::zero_stage stage, std::size_t part) {
    trial what = offloaded({.stage = stage}, part, tier::file);
    what.folder = folder.path;
    return refusal(what);
  };
  says(in_file(belay::zero_stage::none, 0), "the optimizer's state is in a file, which the host reads and writes");
  says(in_file(belay::zero_stage::none, 1), "what the step offloads, such as activations, is in a file");
  for (const std::size_t part : {std::size_t{2}, std::size_t{3}})
    says(in_file(belay::zero_stage::parameters, part), "shards of parameters or gradients are in a file");
  record out;
  const trial what;
  CHECK_THROWS_WITH_AS(belay::launch(belay::host::world(1), body<float>(what, out)),
                       doctest::Contains("these have none: those of belay::cuda do"), belay::usage_error);
}

TEST_CASE("a call that fails while steps are captured or launched is what a launch throws, and nothing is left") {
  const trial what{.steps = 4};
  const auto run_with = [&](std::size_t fails_at, std::vector<std::string>& calls) {
    fakes::device_api api({work_order::late, 0, fails_at});
    record out;
    std::string said;
    try {
      belay::launch(belay::cuda::world(api, belay::host::world(1), {.slot_bytes = 512}),
                    body<float>(what, out, [&] { return api.calls_so_far(); }));
    } catch (const std::exception& problem) {
      said = problem.what();
    }
    CHECK(api.empty());
    if (fails_at == 0)
      calls.assign(api.calls().begin(), api.calls().begin() + static_cast<std::ptrdiff_t>(out.ended.back()));
    return said;
  };
  std::vector<std::string> calls;  // of the steps: what comes after them ends something, and throws nothing
  CHECK(run_with(0, calls).empty());
  std::set<std::size_t> at;
  for (const char* name : {"begin_capture", "end_capture", "launch", "record", "each"})
    for (std::size_t k = calls.size(), found = 0; k > 0 && found < 4; --k)
      if (calls[k - 1] == name) at.insert(k), ++found;
  const std::set<std::string> ends{"destroy_event", "destroy_graph", "destroy_stream", "release", "unregister_host"};
  for (std::size_t k = 1; k < calls.size(); k += 41)
    if (ends.count(calls[k - 1]) == 0) at.insert(k);  // what ends something throws nothing
  for (const std::size_t k : at) {
    CAPTURE(k);
    CAPTURE(calls[k - 1]);
    CHECK(run_with(k, calls).find("injected") != std::string::npos);
  }
}
