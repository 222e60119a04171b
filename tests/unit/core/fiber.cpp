// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "belay/core/fiber.hpp"

#include <doctest/doctest.h>

#include <cfenv>
#include <cstddef>
#include <exception>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>

#include "belay/core/error.hpp"

namespace {

// So deep that it needs far more than a page of the stack.
int count_down(int from) {
  volatile char room[256] = {};
  room[static_cast<std::size_t>(from) % sizeof room] = 1;
  return from == 0 ? 0 : 1 + count_down(from - 1) + 0 * room[0];
}

}  // namespace

TEST_CASE("a fiber and the thread that starts it run in turns, in the order of the program") {
  belay::fiber other;
  CHECK_FALSE(other.under_way());
  std::string order;
  const auto body = [&] {
    order += 'b';
    other.hand_back();
    order += 'd';
    other.hand_back();
    order += 'f';
  };
  order += 'a';
  other.start(body);
  CHECK(other.under_way());
  order += 'c';
  other.go_on();
  order += 'e';
  other.go_on();
  CHECK_FALSE(other.under_way());
  CHECK(order == "abcdef");
}

TEST_CASE("a fiber runs one body after the other on one stack, which is as deep as a thread's") {
  belay::fiber other;
  std::string texts;
  const void* stacks[2] = {};
  for (int i = 0; i < 200; ++i) {
    int depth = 0;
    const auto body = [&] {
      const std::string own = "number " + std::to_string(i);  // on the heap, and destroyed by the flow
      stacks[i % 2] = __builtin_frame_address(0);
      other.hand_back();
      depth = count_down(i == 0 ? 4000 : 10);
      texts = own;
    };
    other.start(body);
    other.go_on();
    CHECK(depth == (i == 0 ? 4000 : 10));
  }
  CHECK(texts == "number 199");
  CHECK(stacks[0] == stacks[1]);
}

TEST_CASE("what a body throws leaves where it was started or let go on, and its objects are gone") {
  belay::fiber other;
  const auto owned = std::make_shared<int>(3);
  CHECK_THROWS_WITH_AS(other.start([] { throw std::runtime_error("at once"); }), "at once", std::runtime_error);
  CHECK_FALSE(other.under_way());
  const auto body = [&] {
    const auto local = owned;
    other.hand_back();
    throw belay::usage_error("later", {});
  };
  other.start(body);
  CHECK(owned.use_count() == 2);
  CHECK_THROWS_AS(other.go_on(), belay::usage_error);
  CHECK(owned.use_count() == 1);
}

TEST_CASE("each flow has its own exceptions, so either hands over where it handles one") {
  belay::fiber other;
  std::string seen;
  const auto body = [&] {
    try {
      throw std::runtime_error("theirs");
    } catch (const std::exception&) {
      other.hand_back();
      try {
        throw;
      } catch (const std::exception& again) {
        seen += again.what();
      }
    }
    CHECK(std::current_exception() == nullptr);
  };
  try {
    throw std::runtime_error("ours");
  } catch (const std::exception&) {
    other.start(body);
    try {
      throw;
    } catch (const std::exception& again) {
      seen += again.what();
    }
  }
  other.go_on();
  CHECK(seen == "ourstheirs");
  CHECK(std::current_exception() == nullptr);
}

TEST_CASE("a body computes in the thread's modes of arithmetic, and a fiber serves another thread later") {
  belay::fiber other;
  other.start([] {});
  int rounding = 0;
  std::thread([&] {
    std::fesetround(FE_UPWARD);
    other.start([&] { rounding = std::fegetround(); });
  }).join();
  CHECK(rounding == FE_UPWARD);
}

TEST_CASE("a second body beside one that is not over, and going on with none, are refused") {
  belay::fiber other;
  CHECK_THROWS_AS(other.go_on(), belay::usage_error);
  const auto body = [&] { other.hand_back(); };
  other.start(body);
  CHECK_THROWS_AS(other.start([] {}), belay::usage_error);
  other.go_on();
}
