// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "belay/device/kit.hpp"

#include <doctest/doctest.h>

#include <cstddef>
#include <span>
#include <vector>

#include "belay/core/dtype.hpp"
#include "belay/device/memory.hpp"
#include "belay/kernel/rows.hpp"

namespace {

// Products that a user might write: it counts, and leaves the arithmetic to the blocked loop.
int calls = 0;
template <class T>
void counted_product(const belay::product_call<T>& call) {
  ++calls;
  belay::kernel::blocked_product<T>::run(call);
}
constexpr belay::host_products counted{counted_product<float>, counted_product<double>};

struct no_kit {
  using stream_type = belay::immediate_stream;
  stream_type& stream();
};

static_assert(belay::takes_products<belay::host_kit<>>);
static_assert(!belay::compute_kit<no_kit, float>);
static_assert(!belay::queueable_kernel<std::vector<float>>);
static_assert(!belay::queueable_kernel<float[65]>);

}  // namespace

TEST_CASE("a host kit runs kernels at once, in order, and no index of none") {
  belay::host_kit<> kit;
  float x[4] = {1, 2, 3, 4};
  kit.each(4, belay::kernel::scale<float>{2, x});
  kit.each(0, belay::kernel::scale<float>{0, x});
  kit.teams(2, belay::kernel::causal_softmax_rows<float>{x, x, 2});
  CHECK(x[0] == 1);
  CHECK(x[2] + x[3] == doctest::Approx(1));
  CHECK(x[3] > x[2]);
}

TEST_CASE("a host kit's products are the functions that it is given, which are asked for nothing empty") {
  belay::host_kit<> kit;
  kit.use_products(counted);
  float a[4] = {1, 2, 3, 4}, c[4] = {9, 9, 9, 9};
  const belay::view<float, 2> matrix{a, {2, 2}}, result{c, {2, 2}};
  calls = 0;
  kit.product(belay::product_call<float>{result, matrix, belay::transposed(matrix)});
  CHECK(calls == 1);
  CHECK(c[0] == 5);
  CHECK(c[1] == 11);
  const belay::operand<float> none{c, 0, 2, 2};
  kit.product(belay::product_call<float>{none, {a, 0, 2, 2}, matrix});
  CHECK(calls == 1);
}

TEST_CASE("grouped products are those of each expert's rows, with experts that have none") {
  belay::host_kit<> kit;
  const std::int32_t ends_of[] = {2, 2, 3};
  const belay::view<const std::int32_t, 1> ends{ends_of, {3}};
  float x[8] = {1, 2, 3, 4, 5, 6, 70, 80};  // the last row is in nobody's use
  float weights[12] = {1, 0, 0, 1, 9, 9, 9, 9, 0, 2, 2, 0};
  float y[8] = {-1, -1, -1, -1, -1, -1, -1, -1};
  const belay::view<float, 2> rows{x, {4, 2}}, out{y, {4, 2}};
  const belay::view<float, 3> stack{weights, {3, 2, 2}};
  kit.grouped(belay::grouped_rows_call<float>{out, rows, stack, ends});
  CHECK(std::vector<float>(y, y + 8) == std::vector<float>{1, 2, 3, 4, 12, 10, -1, -1});

  float sums[12] = {};
  for (float& sum : sums) sum = 1;
  const belay::view<float, 3> gradients{sums, {3, 2, 2}};
  belay::grouped_stack_call<float> sum{gradients, belay::transposed(rows), rows, ends, 1, 1};
  kit.grouped(sum);
  CHECK(std::vector<float>(sums, sums + 12) ==
        std::vector<float>{1 + 10, 1 + 14, 1 + 14, 1 + 20, 1, 1, 1, 1, 1 + 25, 1 + 30, 1 + 30, 1 + 36});
  sum.beta = 0;
  kit.grouped(sum);
  CHECK(sums[4] == 0);  // an expert without rows has a gradient of nothing
  CHECK(sums[8] == 25);
}

TEST_CASE("a rehearsal's kit touches nothing") {
  belay::host_kit<> kit({belay::stream_policy::rehearsal});
  auto* const nowhere = reinterpret_cast<float*>(64);
  const belay::operand<float> c{nowhere, 2, 2, 2};
  const belay::view<const std::int32_t, 1> ends{reinterpret_cast<std::int32_t*>(64), {3}};
  kit.each(4, belay::kernel::scale<float>{2, nowhere});
  kit.teams(2, belay::kernel::causal_softmax_rows<float>{nowhere, nowhere, 2});
  kit.product(belay::product_call<float>{c, c, c});
  kit.grouped(belay::grouped_rows_call<float>{c, c, {nowhere, 3, 2, 2}, ends});
  CHECK(kit.workspace_bytes() == 0);
  const belay::operand<const belay::bf16> narrow{reinterpret_cast<belay::bf16*>(64), 2, 2, 2};
  kit.product(
      belay::product_call<float, belay::bf16>{c, narrow, narrow});  // of which it notes what a run's kit will need
  CHECK(kit.workspace_bytes() == belay::kernel::mixed_tile::bytes);
}

TEST_CASE("panels of mixed products lie in the workspace that a kit is given, and change no bit") {
  using belay::bf16;
  constexpr std::size_t m = 50, n = 70, k = 300;
  std::vector<bf16> a(m * k), b(k * n), c(m * n), expected(m * n);
  for (std::size_t i = 0; i < a.size(); ++i) a[i] = bf16(static_cast<float>(i % 17) - 8.0F);
  for (std::size_t i = 0; i < b.size(); ++i) b[i] = bf16(0.25F * static_cast<float>(i % 13));
  const belay::operand<const bf16> left{a.data(), m, k, k}, right{b.data(), k, n, n};
  belay::host_kit<> bare, given;
  CHECK(bare.workspace_bytes() == 0);
  bare.product(belay::product_call<bf16>{{expected.data(), m, n, n}, left, right});

  const belay::host_pages memory(2 * belay::kernel::mixed_tile::bytes);
  const std::span<std::byte> all(memory.data(), memory.size_bytes());
  given.use_workspace(all.first(100));  // too small
  CHECK(given.workspace_bytes() == 0);
  given.use_workspace(all);
  CHECK(given.workspace_bytes() == belay::kernel::mixed_tile::bytes);
  given.product(belay::product_call<bf16>{{c.data(), m, n, n}, left, right});
  bool same = true, used = false, beyond = false;
  for (std::size_t i = 0; i < c.size(); ++i) same = same && static_cast<float>(c[i]) == static_cast<float>(expected[i]);
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (all[i] == std::byte{}) continue;
    (i < belay::kernel::mixed_tile::bytes ? used : beyond) = true;
  }
  CHECK(same);
  CHECK(used);
  CHECK_FALSE(beyond);
}
