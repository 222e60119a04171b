// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "belay/core/function_ref.hpp"

#include <doctest/doctest.h>

#include <memory>
#include <string>
#include <type_traits>
#include <utility>

namespace {

int call(belay::function_ref<int(int)> what, int x) { return what(x); }

}  // namespace

TEST_CASE("a reference calls what it was given, and does not copy it") {
  int calls = 0;
  const auto counting = [&calls, kept = std::make_unique<int>(5)](int x) { return ++calls + *kept + x; };  // no copies
  CHECK(call(counting, 10) == 16);
  CHECK(call(counting, 10) == 17);
  CHECK(call([total = 3](int x) mutable { return total += x; }, 4) == 7);
}

static_assert(!std::is_constructible_v<belay::function_ref<int(int)>, std::string>);
static_assert(!std::is_constructible_v<belay::function_ref<int(int)>, int(int)>);  // a function is no object

TEST_CASE("a copy of a reference refers to the same callable") {
  int calls = 0;
  auto count = [&] { ++calls; };
  const belay::function_ref<void()> one = count;
  const belay::function_ref<void()> other = one;
  one();
  other();
  CHECK(calls == 2);
}

TEST_CASE("arguments and results are handed on as they are") {
  const auto take = [](std::unique_ptr<int> given, std::string& text) -> std::string& {
    text += std::to_string(*given);
    return text;
  };
  const belay::function_ref<std::string&(std::unique_ptr<int>, std::string&)> ref = take;
  std::string text = "a";
  CHECK(&ref(std::make_unique<int>(3), text) == &text);
  CHECK(text == "a3");
}
