// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A program that forgets one event of its streams does not train as one that has them all: what tests/laws/streams.cpp
// finds equal is found different here.
#include <doctest/doctest.h>

#include <cstdint>
#include <exception>
#include <string>
#include <string_view>

#include "laws/support/run.hpp"
#include "unit/train/support/network.hpp"

using namespace laws;
using belay::stream_policy;

namespace {

// One event of a step, by who records it or waits for it.
enum class forgotten { nothing, reduction, update, gather, boundary, rows, communication, findings };

[[nodiscard]] bool is_in(const belay::where& site, std::string_view header) {
  return std::string_view(site.file).ends_with(header);
}

// Streams that forget it and keep all others, so that nothing else can be what a run is caught by.
struct forgetful_stream : belay::host_stream {
  static inline forgotten event = forgotten::nothing;  // set before ranks start

  using host_stream::host_stream;
  // Its clock goes on, as if it had not forgotten: memory is where it was planned.
  [[nodiscard]] belay::stream_event record(belay::where from = belay::where::current()) {
    const belay::stream_event mark = host_stream::record();
    return records(from) ? belay::stream_event().at(mark.clock()) : mark;
  }
  void wait(const belay::stream_event& mark, belay::where at = belay::where::current(),
            belay::where from = belay::where::current()) {
    host_stream::wait(waits(from, at) ? belay::stream_event().at(mark.clock()) : mark, at);
  }

 private:
  [[nodiscard]] static bool records(const belay::where& from) {
    switch (event) {
      case forgotten::reduction: return is_in(from, "belay/step/handle_calls.hpp");
      case forgotten::update: return is_in(from, "belay/train/optimizer/update.hpp");
      case forgotten::boundary: return is_in(from, "belay/parallel/pipeline/typed_stage.hpp");
      case forgotten::rows: return is_in(from, "belay/parallel/experts/exchange.hpp");
      case forgotten::findings: return is_in(from, "belay/device/findings.hpp");
      default: return false;
    }
  }
  [[nodiscard]] static bool waits(const belay::where& from, const belay::where& at) {
    if (is_in(from, "belay/parallel/pipeline/typed_stage.hpp") || is_in(from, "belay/parallel/experts/exchange.hpp"))
      return event == forgotten::communication;
    if (!is_in(from, "belay/comm/pending.hpp")) return false;
    const bool of_a_gather = is_in(at, "belay/parallel/bucket/value_gathers.hpp");
    return event == (of_a_gather ? forgotten::gather : forgotten::communication);
  }
};

// A run of the trainer, and what its streams leave of it: where it differs from an immediate one, or nothing.
class trained_mesh {
 public:
  explicit trained_mesh(const belay::axes& mesh) : source_(small_run().model.vocab) {
    run_.mesh = mesh;
    run_.steps = 4;
    run_.zero = belay::zero_stage::optimizer_state;
    expected_ = train<double>(run_, source_);
  }
  [[nodiscard]] std::string difference_with(std::uint64_t seed) const {
    options run = run_;
    run.streams = {stream_policy::adversarial, seed};
    using kit = belay::host_kit<forgetful_stream>;
    const difference apart = compare(expected_, train<double, kit>(run, source_));
    return apart.worst == 0 ? std::string() : "the bits of the " + apart.where;
  }

 private:
  options run_ = small_run();
  uneven_text source_;
  record expected_;
};

// The same of a small network on two ranks, whose steps make no blocking call between an update and the next forward:
// such a call comes after all that was started.
class trained_network {
 public:
  trained_network() { belay::launch(belay::host::world{2}, network_bench::training_body<1>(4, expected_)); }
  [[nodiscard]] std::string difference_with(std::uint64_t seed) const {
    network_bench::trained got;
    belay::launch<belay::host_kit<forgetful_stream>>(
        belay::host::world{2}, network_bench::training_body<1>(4, got),
        {.streams = {stream_policy::adversarial, seed}});
    const bool same = got.losses == expected_.losses && got.values == expected_.values;
    return same ? std::string() : "the bits of losses or weights";
  }

 private:
  network_bench::trained expected_;
};

std::string difference_without(forgotten event, const auto& program, std::uint64_t seed) {
  forgetful_stream::event = event;
  try {
    return program.difference_with(seed);
  } catch (const std::exception& problem) {
    return problem.what();  // a number that is none, or a gradient that changed after its checksum
  }
}

// Without `event` a seed changes bits, or ends the run with an error; with all events the same seed does neither.
void is_caught(forgotten event, const std::string& before_what, const auto& program) {
  INFO("without the event before " << before_what);
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    const std::string by = difference_without(event, program, seed);
    if (by.empty()) continue;
    MESSAGE("without the event before " << before_what << ": seed " << seed << ", caught by " << by);
    // No other slip is caught for the host's sake: its own event is there.
    CHECK((by.find("findings of a step are read before they are there") == std::string::npos) ==
          (event != forgotten::findings));
    CHECK(difference_without(forgotten::nothing, program, seed) == "");
    return;
  }
  FAIL("no seed catches it");
}

}  // namespace

TEST_CASE("wrong policies do not pass: an event is forgotten") {
  // What is poisoned may be an index, which a release build does not look at.
  if constexpr (!belay::checked(belay::check_level::local)) return;
  const trained_mesh one({1, 1, 1, 1}), data({1, 2, 1, 1}), pipeline({2, 1, 1, 1}), expert({1, 1, 2, 1});
  const trained_network network;
  is_caught(forgotten::reduction, "a bucket's reduction", data);
  is_caught(forgotten::update, "an optimizer's gather", network);
  is_caught(forgotten::gather, "what an optimizer's gather has written is read", network);
  is_caught(forgotten::boundary, "a tensor is sent, or its memory is received into", pipeline);
  is_caught(forgotten::communication, "a received tensor is used", pipeline);
  is_caught(forgotten::rows, "rows are given to an exchange", expert);
  is_caught(forgotten::communication, "the rows of an exchange are read", expert);
  is_caught(forgotten::findings, "the findings of a step are read", one);
}
