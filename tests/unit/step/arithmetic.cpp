// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "belay/step/arithmetic.hpp"

#include <doctest/doctest.h>

#include <cstdint>
#include <string>
#include <utility>

#include "belay/kernel/rows.hpp"
#include "belay/step/frame.hpp"
#include "belay/step/step.hpp"

namespace {

struct call_site {
  belay::tier_meter meter;
  belay::host_engine engine{belay::host_pages{1 << 16}, meter};
  belay::invocation call;
  belay::invocation_memory memory;
  belay::frame<belay::host_engine> frame{engine, call, belay::frame_mode::owing, memory};
};

}  // namespace

TEST_CASE("a frame leases by braces or by the shape of a view, and multiplies what it has leased") {
  call_site site;
  auto x = belay::keep<float>(site.frame, {2, 3});
  auto w = belay::scratch<float>(site.frame, {4, 3});
  auto y = belay::keep<float>(site.frame, {x.extent(0), w.extent(0)});
  auto like_x = belay::remember<double>(site.frame, x.shape());
  CHECK(like_x.shape() == x.shape());
  site.frame.each(x.size(), belay::kernel::fill<float>{x.data(), 2});
  site.frame.each(w.size(), belay::kernel::fill<float>{w.data(), 3});
  site.frame.product(y, x, belay::transposed(w), 0.5);
  CHECK(y(1, 3) == 9);
  site.frame.product(belay::adding_to(y), x, belay::transposed(w));
  CHECK(y(0, 0) == 27);
  site.frame.teams(y.extent(0), belay::kernel::causal_softmax_rows<float>{y.data(), y.data(), 4});
  CHECK(y(1, 1) == 0.5F);
  CHECK(y(1, 2) == 0);
}

TEST_CASE("operands whose shapes do not fit are refused with them") {
  call_site site;
  const auto a = belay::scratch<float>(site.frame, {2, 3}), b = belay::scratch<float>(site.frame, {4, 3}),
             c = belay::scratch<float>(site.frame, {2, 4});
  CHECK_THROWS_WITH_AS(site.frame.product(c, a, b),
                       doctest::Contains("', product: [2, 4] cannot be [2, 3] times [4, 3]"), belay::usage_error);
  CHECK_THROWS_WITH_AS(site.frame.product(b, a, belay::transposed(b)),
                       doctest::Contains("product: [4, 3] cannot be [2, 3] times [4, 3] transposed"),
                       belay::usage_error);
  const auto stack = belay::scratch<float>(site.frame, {5, 4, 3});
  const belay::view<const std::int32_t, 1> four{nullptr, {4}};
  CHECK_THROWS_AS(site.frame.grouped(c, a, belay::transposed(stack), four), belay::usage_error);
  CHECK_THROWS_WITH_AS(site.frame.grouped(belay::adding_to(stack), a, b, four), doctest::Contains("grouped product"),
                       belay::usage_error);
}

TEST_CASE("rows of experts that are none are told by the commit with layer, micro-batch and line") {
  if constexpr (!belay::checked(belay::check_level::local)) return;
  call_site site;
  const auto a = belay::scratch<float>(site.frame, {4, 3}), y = belay::scratch<float>(site.frame, {4, 2});
  const auto stack = belay::scratch<float>(site.frame, {2, 3, 2});
  const std::int32_t ends[] = {1, 5};
  const auto commit = [&](int& line) {
    belay::step step{site.engine};
    belay::invocation call{"experts", 3, 2, {}};
    belay::invocation_memory memory;
    belay::frame<belay::host_engine> frame{site.engine, call, belay::frame_mode::owing, memory};
    line = __LINE__ + 1;
    frame.grouped(y, a, stack, belay::view<const std::int32_t, 1>{ends, {2}});
    static_cast<void>(std::move(step).commit());
  };
  int line = 0;
  try {
    commit(line);
    FAIL("it was committed");
  } catch (const belay::usage_error& wrong) {
    const std::string said = wrong.what();
    CHECK(said.find("layer 3 'experts' (micro-batch 2): the rows of expert 1 end at 5, after 1 and of 4") !=
          std::string::npos);
    CHECK(said.find("arithmetic.cpp:" + std::to_string(line)) != std::string::npos);
  }
}
