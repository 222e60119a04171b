// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The products that the CUDA backend makes itself, as kernels of blocks whose lanes run in seeded orders. Operands are
// small integers, so that every order of a sum gives the same bits.
#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "belay/backend/cuda/converted_product.hpp"
#include "belay/backend/cuda/grouped_tiles.hpp"
#include "belay/core/dtype.hpp"
#include "belay/device/kit.hpp"
#include "belay/kernel.hpp"
#include "fakes/cuda/fiber_block.hpp"

using belay::bf16, belay::operand, belay::operand_stack, belay::reading;
using index_type = std::int32_t;
using ends_type = belay::view<const index_type, 1>;

namespace {

template <class T>
std::vector<T> integers(std::size_t count, std::size_t salt) {
  std::vector<T> out(count);
  for (std::size_t i = 0; i < count; ++i)
    out[i] = static_cast<T>(static_cast<float>((i * 7 + i / 5 + salt) % 9) - 4.0F);
  return out;
}
template <class T>
bool same(const std::vector<T>& x, const std::vector<T>& y) {
  bool all = true;
  for (std::size_t i = 0; i < x.size(); ++i) all = all && static_cast<double>(x[i]) == static_cast<double>(y[i]);
  return all;
}

// Runs the blocks of a kernel, its lanes in seeded orders.
struct by_fibers {
  std::uint64_t seed;
  template <class K>
  bool blocks(const K& k) const {
    fakes::for_each_block(k.blocks(), k, seed);
    return true;
  }
};

// Experts with no rows, one, a tile but one, a tile, and a tile and one; rows of no expert behind them.
const std::vector<index_type> odd_ends{0, 1, 1, 64, 192, 321};
constexpr std::size_t m = 330;

// Columns and depth of a product, and what rows are longer than they are.
struct widths {
  std::size_t n, k, beyond;
};
constexpr widths odd{70, 37, 3}, packed{72, 40, 8}, wide{136, 104, 0};

template <class C, class A, class B>
void check_rows(const widths& of, reading as, belay::compute_type_t<C> beta, std::uint64_t seed) {
  const auto [n, k, beyond] = of;
  const ends_type ends{odd_ends.data(), {odd_ends.size()}};
  const auto a = integers<A>(m * (k + beyond), 1);
  const auto b = integers<B>(odd_ends.size() * n * k, 2);
  auto got = integers<C>(m * (n + beyond), 3);
  auto expected = got;
  const operand<const A> rows{a.data(), m, k, k + beyond};
  const operand_stack<const B> stack = as == reading::as_is
                                           ? operand_stack<const B>{b.data(), odd_ends.size(), k, n}
                                           : operand_stack<const B>{b.data(), odd_ends.size(), n, k, as};
  const auto call = [&, columns = n, stride = n + beyond](std::vector<C>& c) {
    return belay::grouped_rows_call<C, A, B, index_type>{{c.data(), m, columns, stride}, rows, stack, ends, 2, beta};
  };
  belay::kernel::for_each_index(m * n, belay::cuda::grouped_element<C, A, B, index_type>{call(expected)});
  by_fibers by{seed};
  CHECK(belay::cuda::queue_grouped<fakes::tensor_fibers>(by, call(got), {}));
  CHECK(same(got, expected));
}

template <class C, class A, class B>
void check_stack(const widths& of, belay::compute_type_t<C> beta, std::uint64_t seed) {
  const auto [n, k, beyond] = of;
  const ends_type ends{odd_ends.data(), {odd_ends.size()}};
  const auto a = integers<A>(m * n, 1);
  const auto b = integers<B>(m * (k + beyond), 2);
  auto got = integers<C>(odd_ends.size() * n * k, 3);
  auto expected = got;
  const operand<const A> left{a.data(), m, n, n, reading::transposed};
  const operand<const B> right{b.data(), m, k, k + beyond};
  const auto call = [&, rows = n, columns = k](std::vector<C>& c) {
    return belay::grouped_stack_call<C, A, B, index_type>{
        {c.data(), odd_ends.size(), rows, columns}, left, right, ends, 2, beta};
  };
  belay::kernel::for_each_index(odd_ends.size() * n * k,
                                belay::cuda::stacked_element<C, A, B, index_type>{call(expected)});
  by_fibers by{seed};
  CHECK(belay::cuda::queue_grouped<fakes::tensor_fibers>(by, call(got), {}));
  CHECK(same(got, expected));
}

using scalars = belay::cuda::scalar_tiles<float>;

}  // namespace

TEST_CASE("tiles of experts' products are the products of elements, of odd shapes, in every order of lanes") {
  std::uint64_t seed = 0;
  for (const float beta : {0.0F, 1.0F}) {
    for (const reading as : {reading::as_is, reading::transposed}) check_rows<float, float, float>(odd, as, beta, seed++);
    check_stack<float, float, float>(odd, beta, seed++);
    check_stack<float, float, bf16>(odd, beta, seed++);
  }
  check_rows<bf16, float, bf16>(odd, reading::as_is, 0, seed++);
  check_rows<double, double, double>(odd, reading::transposed, 1, seed++);
}

TEST_CASE("tiles of tensor cores are the products of elements, packed and not, in every order of lanes") {
  std::uint64_t seed = 0;
  for (const widths& of : {odd, packed, wide}) {
    for (const reading as : {reading::as_is, reading::transposed})
      check_rows<bf16, bf16, bf16>(of, as, seed % 2 == 0 ? 1.0F : 0.0F, seed), ++seed;
    check_rows<float, bf16, bf16>(of, reading::transposed, 0.0F, seed++);
    check_stack<float, bf16, bf16>(of, 1.0F, seed++);
  }
}

TEST_CASE("ends that are none are noted once, and write nothing from there on") {
  const std::vector<index_type> wrong{2, 1, 9};
  const ends_type ends{wrong.data(), {3}};
  const auto a = integers<float>(5 * 4, 1), b = integers<float>(3 * 4 * 6, 2);
  std::vector<float> c(5 * 6, -1), stack(3 * 4 * 6, -1);
  belay::kernel::findings_record record;
  const operand<const float> rows{a.data(), 5, 4, 4};
  const belay::cuda::grouped_rows<scalars, float, float, float, index_type> all{
      {{c.data(), 5, 6, 6}, rows, {b.data(), 3, 4, 6}, ends}, {&record, {}}};
  fakes::for_each_block(all.blocks(), all, 1);
  CHECK(record.wrong == 1);
  CHECK(record.first_wrong.number == 1);
  CHECK(record.first_wrong.value == 1);
  CHECK(c[11] != -1);  // of the expert before
  CHECK(c[12] == -1);
  const belay::cuda::grouped_stack<scalars, float, float, float, index_type> weights{
      {{stack.data(), 3, 4, 6}, belay::transposed(rows), {b.data(), 5, 6, 6}, ends}, {&record, {}}};
  fakes::for_each_block(weights.blocks(), weights, 2);
  CHECK(record.wrong == 2);
  CHECK(stack[23] != -1);
  CHECK(stack[24] == -1);
}

namespace {

// Queues on nothing, and can fail.
struct at_once {
  std::size_t left = ~std::size_t{0};
  std::size_t calls = 0;

  template <class F>
  bool each(std::size_t count, const F& f) {
    ++calls;
    if (left-- == 0) return false;
    belay::kernel::for_each_index(count, f);
    return true;
  }
  bool product(const belay::product_call<float>& call) {
    ++calls;
    if (left-- == 0) return false;
    belay::host_kit<>().product(call);
    return true;
  }
};

template <class C, class A, class B>
void check_converted(reading of_a, reading of_b, float beta) {
  constexpr std::size_t rows = 40, columns = 21, depth = 50;
  const auto a = integers<A>(rows * depth, 1);
  const auto b = integers<B>(depth * columns, 2);
  auto got = integers<C>(rows * (columns + 1), 3);
  auto expected = got;
  const operand<const A> left = of_a == reading::as_is ? operand<const A>{a.data(), rows, depth, depth}
                                                       : operand<const A>{a.data(), depth, rows, rows, of_a};
  const operand<const B> right = of_b == reading::as_is ? operand<const B>{b.data(), depth, columns, columns}
                                                        : operand<const B>{b.data(), columns, depth, depth, of_b};
  belay::product_call<C, A, B> call{{expected.data(), rows, columns, columns + 1}, left, right, 0.5F, beta};
  belay::kernel::for_each_index(rows * columns, belay::cuda::element_product<C, A, B>{call});
  call.c.data = got.data();
  std::vector<float> room(3 * 32 * 32);  // panels of 32
  at_once by;
  CHECK(belay::cuda::converted_product(by, call, std::as_writable_bytes(std::span(room))));
  CHECK(by.calls > 4);
  CHECK(same(got, expected));
  at_once failing{by.calls - 1};
  CHECK(!belay::cuda::converted_product(failing, call, std::as_writable_bytes(std::span(room))));
  CHECK(failing.calls == by.calls);
}

}  // namespace

TEST_CASE("a product of types that no library multiplies is one of floats, panel by panel") {
  for (const reading x : {reading::as_is, reading::transposed})
    for (const reading y : {reading::as_is, reading::transposed}) {
      check_converted<float, float, bf16>(x, y, 1);
      check_converted<bf16, bf16, float>(x, y, 0);
      check_converted<bf16, float, float>(x, y, 1);
    }
  CHECK(belay::cuda::panel_side(3 * 32 * 32 * 4) == 32);
  CHECK(belay::cuda::panel_side(3 * 32 * 32 * 4 - 1) == 16);
}
