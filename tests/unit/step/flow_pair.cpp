// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "belay/step/flow_pair.hpp"

#include <doctest/doctest.h>

#include <cstddef>
#include <exception>
#include <stdexcept>
#include <string>

#include "belay/core/error.hpp"
#include "belay/step.hpp"

using belay::flow_pair;
using belay::pair_turn;

namespace {

// Writes what happens, in order. Each flow has a guard, whose end is written too.
struct written {
  flow_pair pair;
  std::string text;

  struct guard {
    std::string& to;
    char what;
    ~guard() { to += what; }
  };
  void run(const auto& first, const auto& second) {
    text.clear();
    pair.run(
        [&] {
          const guard ended{text, ')'};
          text += '(';
          first();
        },
        [&] {
          const guard ended{text, ']'};
          text += '[';
          second();
        },
        [&](pair_turn whose) { text += whose == pair_turn::first ? '1' : '2'; });
  }
  auto part(char of, std::size_t count) {
    return [this, of, count] {
      for (std::size_t i = 0; i < count; ++i) text += of, pair.hand_over();
    };
  }
};

}  // namespace

TEST_CASE("two flows run in turns, and the one that has more to do runs to its end alone") {
  written it;
  it.run(it.part('a', 2), it.part('b', 2));
  CHECK(it.text == "(a1[b2a1b2)1]2");
  CHECK(it.pair.hand_overs() == 4);
  it.run(it.part('a', 1), it.part('b', 3));
  CHECK(it.text == "(a1[b2)1bb]2");
  it.run(it.part('a', 3), it.part('b', 0));
  CHECK(it.text == "(a1[]2aa)1");
  it.run(it.part('a', 0), it.part('b', 2));  // nothing to run beside
  CHECK(it.text == "()1[bb]2");
}

TEST_CASE("an error in one flow ends the other where it handed over, and is the one that leaves") {
  written it;
  const auto fails = [&](const char* what, std::size_t turns, char of) {
    return [&it, what, turns, of] {
      it.part(of, turns)();
      throw std::domain_error(what);
    };
  };
  CHECK_THROWS_WITH_AS(it.run(fails("first", 1, 'a'), it.part('b', 3)), "first", std::domain_error);
  CHECK(it.text == "(a1[b2)]");
  CHECK_THROWS_WITH_AS(it.run(it.part('a', 3), fails("second", 1, 'b')), "second", std::domain_error);
  CHECK(it.text == "(a1[b2a1])");
  CHECK_THROWS_WITH_AS(it.run(fails("at once", 0, 'a'), it.part('b', 3)), "at once", std::domain_error);
  CHECK(it.text == "()");  // the other has not begun
  CHECK_THROWS_WITH_AS(it.run(it.part('a', 0), fails("alone", 2, 'b')), "alone", std::domain_error);
  it.run(it.part('a', 1), it.part('b', 1));
  CHECK(it.text == "(a1[b2)1]2");
}

TEST_CASE("a flow that is cut off is not taken for one that has failed, and may not go on as if nothing were") {
  written it;
  const auto handles_all = [&] {
    for (int i = 0; i < 3; ++i) {
      try {
        it.part('b', 1)();
      } catch (const std::exception&) {
        it.text += '!';  // it is no std::exception
      } catch (...) {
        it.text += '?';
      }
    }
    throw std::runtime_error("of the flow that was cut off");
  };
  CHECK_THROWS_WITH_AS(it.run([&] { it.pair.hand_over(), throw std::domain_error("first"); }, handles_all), "first",
                       std::domain_error);
  CHECK(it.text == "(1[b2)?b?b?]");
}

TEST_CASE("an engine has one pair at a time, and without one a layer hands over to nobody") {
  belay::tier_meters meters;
  belay::host_engine engine(belay::host_pages(4096), meters[belay::tier::device]);
  engine.hand_over();
  std::string order;
  flow_pair pair;
  const auto watch = [](pair_turn) {};
  engine.run_beside(
      pair,
      [&] {
        order += 'a';
        engine.hand_over();
        order += 'c';
        flow_pair within;
        CHECK_THROWS_AS(engine.run_beside(
                            within, [] {}, [] {}, watch, belay::where::current()),
                        belay::usage_error);
      },
      [&] {
        order += 'b';
        engine.hand_over();
        order += 'd';
      },
      watch, belay::where::current());
  engine.hand_over();
  CHECK(order == "abcd");
}

namespace {

struct written_calls final : belay::call_listener {
  std::string text;
  void begin(const belay::call_under_way& now) noexcept override { text += std::string("(") + now.layer; }
  void end() noexcept override { text += ')'; }
};

}  // namespace

TEST_CASE("a call that hands over ends for who listens, and begins again inside of those around it when it goes on") {
  belay::tier_meters meters;
  belay::host_engine engine(belay::host_pages(4096), meters[belay::tier::device]);
  written_calls calls;
  engine.watch().tell_calls(calls);
  using mark = belay::host_engine::watch_type::mark;
  const auto call_of = [](const char* layer) {
    return belay::call_under_way{belay::layer_call::forward, layer, 0, 0, belay::where::current()};
  };
  flow_pair pair;
  engine.run_beside(
      pair,
      [&] {
        const mark around{engine.watch(), call_of("a")};
        const mark within{engine.watch(), call_of("b")};
        engine.hand_over();
      },
      [&] {
        const mark other{engine.watch(), call_of("c")};
        engine.hand_over();
      },
      [](pair_turn) {}, belay::where::current());
  CHECK(calls.text == "(a(b))(c)(a(b))(c)");
}
