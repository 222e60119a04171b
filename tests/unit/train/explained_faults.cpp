// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A fault of a body in its rehearsal: explained by a handler where the options ask for one. Else no handler is there,
// and a checked build has named the option before.
#include <doctest/doctest.h>
#include <unistd.h>

#include <cstddef>
#include <cstdlib>
#include <string>

#include "belay/backend/host.hpp"
#include "belay/backend/host/processes.hpp"
#include "belay/belay.hpp"
#include "unit/step/support/ended_child.hpp"

namespace {

using ended_child::ended, ended_child::in_child, ended_child::segv_is_default;
using input = belay::view<const float, 2>;
const belay::launch_options explained{.explain_faults = belay::fault_explanation::by_handler};

enum class touch { nothing, its_output };

// Writes to its output by itself, not in a kernel.
struct careless {
  touch touches = touch::nothing;

  struct residue {
    belay::view<float, 2> out;
  };
  [[nodiscard]] static const char* name() { return "careless"; }
  [[nodiscard]] static std::size_t index() { return 3; }

  residue forward(auto& frame, input x) {
    residue r{frame.template keep<float>(x.shape())};
    if (touches == touch::its_output) *const_cast<volatile float*>(r.out.data()) = 1;
    return r;
  }
  void backward(auto&, residue&&, input, belay::view<float, 2>) {}
};

enum class handler { absent, installed };

// One step, in which the process ends with 3 where a handler of SIGSEGV is there against what `expected` says.
auto body(touch touches, handler expected) {
  return [=](belay::rank&, auto& run) {
    careless layer{touches};
    for ([[maybe_unused]] const auto number : run.steps(1)) {
      belay::step step{run.engine()};
      if (run.rehearsing() && segv_is_default() != (expected == handler::absent)) ::_exit(3);
      auto h = belay::forward(step, layer, input{nullptr, {4, 8}});
      const input gradient = h.out();
      static_cast<void>(std::move(h).backward(gradient));
      static_cast<void>(std::move(step).commit());
    }
  };
}

const std::string named =
    "belay: the body is rehearsed over addresses without memory; if it faults there (SIGSEGV), "
    "launch_options::explain_faults = fault_explanation::by_handler says in which layer\n";
const std::string in_a_checked_build = belay::checked(belay::check_level::local) ? named : std::string();

}  // namespace

TEST_CASE("a fault in a rehearsal is explained where the options say so, of launch and of rehearse") {
  const ended launched =
      in_child([] { belay::launch(belay::host::world{1}, body(touch::its_output, handler::installed), explained); });
  const ended planned =
      in_child([] { static_cast<void>(belay::rehearse(2, body(touch::its_output, handler::installed), explained)); });
  const ended of_a_world = in_child([] {
    const belay::host::world world{2};
    static_cast<void>(belay::rehearse(world, body(touch::its_output, handler::installed), explained));
  });
  for (const ended& each : {launched, planned, of_a_world}) {
    CHECK(each.by_segv());
    CHECK(each.says("belay: a rehearsal touched memory"));
    CHECK(each.says("in the forward of layer 3 'careless'"));
    CHECK_FALSE(each.says(named));
  }
  const ended clean = in_child([] {
    belay::launch(belay::host::world{1}, body(touch::nothing, handler::installed), explained);
    if (!segv_is_default()) ::_exit(4);
  });
  CHECK(clean.status == 0);
  CHECK(clean.said.empty());
}

TEST_CASE("nobody has asked for a handler: none is installed, and the last line before the fault names the option") {
  const ended launched =
      in_child([] { belay::launch(belay::host::world{1}, body(touch::its_output, handler::absent)); });
  const ended planned =
      in_child([] { static_cast<void>(belay::rehearse(2, body(touch::its_output, handler::absent))); });
  for (const ended& each : {launched, planned}) {
    CHECK(each.by_segv());
    CHECK(each.said == in_a_checked_build);
  }
}

TEST_CASE("the line is said once a process, and by one of a launcher's processes") {
  const ended thrice = in_child([] {
    static_cast<void>(belay::rehearse(2, body(touch::nothing, handler::absent)));
    belay::launch(belay::host::world{2}, body(touch::nothing, handler::absent));
    belay::launch(belay::host::processes{2}, body(touch::nothing, handler::absent));
  });
  CHECK(thrice.status == 0);
  CHECK(thrice.said == in_a_checked_build);
  for (const bool first : {true, false}) {
    const ended rank = in_child([&] {
      ::setenv("RANK", first ? "0" : "1", 1);
      ::setenv("WORLD_SIZE", "2", 1);
      ::setenv("LOCAL_RANK", first ? "0" : "1", 1);
      ::setenv("LOCAL_WORLD_SIZE", "2", 1);
      static_cast<void>(belay::rehearse(2, body(touch::nothing, handler::absent)));
    });
    CHECK(rank.status == 0);
    CHECK(rank.said == (first ? in_a_checked_build : std::string()));
  }
  const ended contradictory = in_child([] {
    ::setenv("BELAY_LAUNCHER", "nobody's", 1);  // an error of whoever needs the launcher
    static_cast<void>(belay::rehearse(2, body(touch::nothing, handler::absent)));
  });
  CHECK(contradictory.status == 0);
}
