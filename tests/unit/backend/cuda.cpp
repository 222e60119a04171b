// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The CUDA backend's memory, streams and kit over a device of the host whose streams are late on purpose.
#include "belay/backend/cuda.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "belay/backend/cuda/element_products.hpp"
#include "belay/core/dtype.hpp"
#include "belay/device.hpp"
#include "belay/kernel.hpp"
#include "unit/backend/fake_cuda.hpp"

using namespace fake_cuda;
using belay::stream_kind;
using fakes::work_order;

namespace {

void fill_numbers(float* first, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) first[i] = 0.125F * static_cast<float>(i % 23) - 1.0F;
}

// What a kit computes at `base`: kernels, teams and products of all kinds. Layout: floats from 0, results from 16 KiB.
struct all_kinds {
  std::byte* base;

  template <class T = float>
  [[nodiscard]] T* at(std::size_t kib) const {
    return reinterpret_cast<T*>(base + kib * 1024);
  }
  template <class Kit>
  void operator()(Kit& kit) const {
    constexpr std::size_t m = 24, n = 20, k = 28;
    const belay::operand<const float> a{at(0), m, k, k}, b{at(4), n, k, k};
    const belay::operand<float> c{at(16), m, n, n};
    kit.product(belay::product_call<float>{c, a, belay::transposed(b), 2});
    kit.product(belay::product_call<float>{c, a, belay::transposed(b), 1, 0.5F});
    kit.teams(m, belay::kernel::causal_softmax_rows<float>{at(16), at(20), n});
    kit.each(m * n, belay::kernel::axpy<float>{0.5F, at(20), at(16)});
    const belay::view<const std::int32_t, 1> ends{at<std::int32_t>(12), {3}};
    kit.grouped(belay::grouped_rows_call<float>{{at(24), m, n, n}, a, {at(0), 3, k, n}, ends});
    kit.grouped(belay::grouped_stack_call<float>{{at(28), 3, k, n}, belay::transposed(a), {at(20), m, n, n}, ends});
    const belay::operand<const belay::bf16> left{at<belay::bf16>(8), m, k, k};
    kit.product(belay::product_call<belay::bf16>{{at<belay::bf16>(40), m, m, m}, left, belay::transposed(left)});
    kit.each(0, belay::kernel::fill<float>{nullptr, 0});
    kit.product(belay::product_call<float>{{nullptr, 0, n, n}, a, belay::transposed(b)});
  }
  static void inputs(std::byte* base) {
    const all_kinds x{base};
    fill_numbers(x.at(0), 2048);
    for (std::size_t i = 0; i < 1024; ++i) x.at<belay::bf16>(8)[i] = belay::bf16(static_cast<float>(i % 13) - 6.0F);
    for (std::size_t e = 0; e < 3; ++e) x.at<std::int32_t>(12)[e] = static_cast<std::int32_t>(10 * e);
  }
};

}  // namespace

TEST_CASE("a kernel is given memory of the device or registered memory: other memory of the host is refused by name") {
  bench on;
  std::vector<float> heap(8);
  float stack[8] = {};
  const auto queue = [&](float* to, const float* from) {
    on.kit.each(8, belay::kernel::axpy<float>{0.5F, from, to});
    on.kit.stream().synchronize();
  };
  queue(on.on_device<float>(0), on.on_host<float>(0));
  if (!fakes::finds_host_addresses) return;
  for (float* const other : {heap.data(), static_cast<float*>(stack)}) {
    CHECK_THROWS_WITH_AS(queue(on.on_device<float>(0), other), doctest::Contains("axpy<float"), belay::backend_error);
    CHECK_THROWS_WITH_AS(queue(other, on.on_device<float>(0)), doctest::Contains("an address of the host"),
                         belay::backend_error);
  }
}
TEST_CASE("a kit of a device has the bits of the host's, whenever its work runs") {
  const belay::host_pages expected(1 << 16);
  all_kinds::inputs(expected.data());
  belay::host_kit<> host;
  all_kinds{expected.data()}(host);
  for (const fakes::device_options& how : orders()) {
    bench with(how);
    all_kinds::inputs(with.pinned.data());
    with.upload();
    all_kinds{with.memory.data()}(with.kit);
    with.download();
    CHECK(std::memcmp(with.pinned.data(), expected.data(), expected.size_bytes()) == 0);
  }
}

TEST_CASE("work is late: it runs when the host waits for it, and only that") {
  bench with({work_order::late});
  with.on_host<float>(0)[0] = 1;
  with.copies.copy(with.memory.data(), with.pinned.data(), 64);
  const belay::stream_event uploaded = with.copies.record();
  with.kit.each(1, belay::kernel::fill<float>{with.on_device<float>(64), 2});
  const belay::stream_event filled = with.kit.stream().record();
  CHECK(!uploaded.ready());
  filled.synchronize();
  CHECK(filled.ready());
  CHECK(!uploaded.ready());
  with.on_host<float>(0)[0] = 3;  // too early, and so it is what is copied
  uploaded.synchronize();
  with.download();
  CHECK(with.on_host<float>(0)[0] == 3);
  CHECK(with.on_host<float>(64)[0] == 2);
}

namespace {

enum class wait_for { event, nothing };

// A batch is copied to the device beside the kernels, and what they make of it back: y = 2 x + 1.
std::vector<float> doubled(const fakes::device_options& how, wait_for before_kernel, wait_for before_copy) {
  bench with(how);
  fill_numbers(with.on_host<float>(0), 64);
  with.copies.copy(with.on_device<float>(0), with.on_host<float>(0), 256);
  if (const auto here = with.copies.record(); before_kernel == wait_for::event) with.kit.stream().wait(here);
  with.kit.each(64, belay::kernel::fill<float>{with.on_device<float>(1024), 1});
  with.kit.each(64, belay::kernel::axpy<float>{2, with.on_device<float>(0), with.on_device<float>(1024)});
  if (const auto done = with.kit.stream().record(); before_copy == wait_for::event) with.copies.wait(done);
  with.copies.copy(with.on_host<float>(1024), with.on_device<float>(1024), 256);
  with.copies.synchronize();
  return {with.on_host<float>(1024), with.on_host<float>(1024) + 64};
}

}  // namespace

TEST_CASE("events order streams in every order, and a missing one is seen") {
  std::vector<float> expected(64);
  fill_numbers(expected.data(), 64);
  for (float& x : expected) x = 2 * x + 1;
  std::size_t without_first = 0, without_second = 0;
  for (const fakes::device_options& how : orders()) {
    CHECK(doubled(how, wait_for::event, wait_for::event) == expected);
    if (how.order == work_order::eager) continue;  // where nothing is late nothing is seen
    without_first += doubled(how, wait_for::nothing, wait_for::event) != expected;
    without_second += doubled(how, wait_for::event, wait_for::nothing) != expected;
  }
  CHECK(doubled({work_order::eager}, wait_for::nothing, wait_for::nothing) == expected);
  CHECK(doubled({work_order::late}, wait_for::event, wait_for::nothing) != expected);
  CHECK(without_first > 0);
  CHECK(without_second > 0);
}

TEST_CASE("more events than a stream has keep their order") {
  for (const fakes::device_options& how : orders()) {
    bench with(how);
    std::vector<belay::stream_event> marks;
    for (std::size_t i = 0; i < 3 * belay::cuda::stream_state<api_type>::events; ++i) {
      with.kit.each(1, belay::kernel::fill<float>{with.on_device<float>(0), static_cast<float>(i)});
      marks.push_back(with.kit.stream().record());
    }
    with.copies.wait(marks.front());  // its event was recorded again
    with.copies.copy(with.on_host<float>(0), with.on_device<float>(0), 4);
    with.copies.synchronize();
    CHECK(with.on_host<float>(0)[0] >= 0);
    CHECK(marks.front().ready());
    marks.back().synchronize();
    with.download();
    CHECK(with.on_host<float>(0)[0] == static_cast<float>(marks.size() - 1));
  }
}

TEST_CASE("a stream of the host waits for one of the device, and the other way round") {
  bench with({work_order::late});
  float seen = 0;
  belay::host_stream host(belay::stream_settings{belay::stream_policy::queued});
  fill_numbers(with.on_host<float>(0), 4);
  with.upload();
  with.kit.each(4, belay::kernel::scale<float>{2, with.on_device<float>(0)});
  with.kit.stream().copy(with.on_host<float>(1024), with.on_device<float>(0), 16);
  host.wait(with.kit.stream().record());
  host.run([&seen, from = with.on_host<float>(1024), to = with.on_host<float>(2048)] {
    seen = from[1];
    to[0] = 2 * from[1];
  });
  with.kit.stream().wait(host.record());
  with.upload();
  with.kit.stream().synchronize();
  CHECK(seen == 2 * (0.125F - 1.0F));
  with.on_host<float>(2048)[0] = 0;
  with.download();
  CHECK(with.on_host<float>(2048)[0] == 4 * (0.125F - 1.0F));
}

namespace {

// A range of the arena that a copy still reads is freed, and used again by the kit. Says what was copied.
float copied_from_freed(const fakes::device_options& how, wait_for told) {
  bench with(how);
  belay::tier_meter meter;
  belay::arena<memory_type> arena(belay::tier::device, memory_type(with.gpu, 1 << 12), 16, meter);
  arena.follow(with.kit.stream().clock());
  arena.poison_in(with.kit.stream());
  belay::lease_chain chain;
  const auto x = arena.lease<float>(belay::extents<1>{8}, chain);
  with.kit.each(8, belay::kernel::fill<float>{x.data(), 5});
  with.copies.wait(with.kit.stream().record());
  with.copies.copy(with.on_host<float>(0), x.data(), 32);
  if (const auto copied = with.copies.record(); told == wait_for::event) {
    arena.used_until(copied, x.data(), 32);
    with.kit.stream().wait(copied);
  }
  arena.release(chain);
  with.kit.stream().synchronize();
  with.copies.synchronize();
  return with.on_host<float>(0)[7];
}

}  // namespace

TEST_CASE("what is freed is poisoned in the order of the stream, so that a copy that nobody waits for is seen") {
  std::size_t seen = 0;
  for (const fakes::device_options& how : orders()) {
    CHECK(copied_from_freed(how, wait_for::event) == 5);
    seen += std::isnan(copied_from_freed(how, wait_for::nothing));
  }
  CHECK(std::isnan(copied_from_freed({work_order::late}, wait_for::nothing)));
  CHECK(seen > 1);
}

TEST_CASE("an arena over memory of a device is one allocation, and gives the ranges of one of the host") {
  bench with;
  const auto before = with.api.calls().size();
  belay::tier_meter meter, of_host;
  belay::arena<memory_type> arena(belay::tier::device, memory_type(with.gpu, 1 << 12), 16, meter);
  belay::arena<belay::host_pages> same(belay::tier::device, belay::host_pages(1 << 12), 16, of_host);
  belay::lease_chain a, b;
  for (int i = 0; i < 3; ++i) {
    const auto here =
        arena.lease<float>(belay::extents<1>{70}, a).data() - reinterpret_cast<float*>(arena.memory().data());
    const auto there =
        same.lease<float>(belay::extents<1>{70}, b).data() - reinterpret_cast<float*>(same.memory().data());
    CHECK(here == there);
  }
  CHECK(with.api.calls().size() == before + 1);
  CHECK(with.api.calls().back() == "allocate");
  CHECK_THROWS_AS(static_cast<void>(arena.lease<float>(belay::extents<1>{4096}, a)), belay::budget_error);
}

TEST_CASE("products of one element an index are the kit's, of all readings, types and groups") {
  using belay::operand, belay::bf16;
  constexpr std::size_t m = 5, n = 6, k = 7;
  std::vector<float> a(3 * k * n), b(3 * k * n), c(3 * k * n, 2);
  std::vector<float> expected = c;
  fill_numbers(a.data(), a.size());
  fill_numbers(b.data() + 5, b.size() - 5);
  const auto close = [&] {
    bool all = true;
    for (std::size_t i = 0; i < c.size(); ++i) all = all && std::abs(c[i] - expected[i]) <= 1e-5F;
    return all;
  };
  belay::host_kit<> kit;
  const operand<const float> left[] = {{a.data(), m, k, k}, {a.data(), k, m, m, belay::reading::transposed}};
  const operand<const float> right[] = {{b.data(), k, n, n}, {b.data(), n, k, k, belay::reading::transposed}};
  for (const auto& x : left)
    for (const auto& y : right)
      for (const float beta : {0.0F, 0.5F}) {
        kit.product(belay::product_call<float>{{expected.data(), m, n, n}, x, y, 2, beta});
        belay::kernel::for_each_index(
            m * n, belay::cuda::element_product<float, float, float>{{{c.data(), m, n, n}, x, y, 2, beta}});
        CHECK(close());
      }
  std::vector<bf16> narrow(m * k), sums(m * m), expected_sums(m * m);
  for (std::size_t i = 0; i < narrow.size(); ++i) narrow[i] = bf16(static_cast<float>(i % 13) - 6.0F);
  const operand<const bf16> z{narrow.data(), m, k, k};
  kit.product(belay::product_call<bf16>{{expected_sums.data(), m, m, m}, z, belay::transposed(z)});
  belay::kernel::for_each_index(
      m * m, belay::cuda::element_product<bf16, bf16, bf16>{{{sums.data(), m, m, m}, z, belay::transposed(z)}});
  for (std::size_t i = 0; i < sums.size(); ++i)
    CHECK(static_cast<float>(sums[i]) == static_cast<float>(expected_sums[i]));

  const std::int32_t rows_end[] = {2, 2, 4};  // an expert without rows, and a row without an expert
  const belay::view<const std::int32_t, 1> ends{rows_end, {3}};
  belay::grouped_rows_call<float> rows{{expected.data(), m, n, n}, left[0], {b.data(), 3, k, n}, ends};
  kit.grouped(rows);
  rows.c.data = c.data();
  belay::kernel::for_each_index(m * n, belay::cuda::grouped_element<float, float, float, std::int32_t>{rows});
  CHECK(close());
  belay::grouped_stack_call<float> stack{
      {expected.data(), 3, k, n}, belay::transposed(left[0]), {b.data(), m, n, n}, ends, 1, 1};
  kit.grouped(stack);
  stack.c.data = c.data();
  belay::kernel::for_each_index(3 * k * n, belay::cuda::stacked_element<float, float, float, std::int32_t>{stack});
  CHECK(close());

  belay::kernel::findings_record record;
  const std::int32_t wrong[] = {2, 1, 9};
  belay::cuda::noted_ends<std::int32_t>{{wrong, {3}}, m, {&record, {}}}(0);
  CHECK(record.wrong == 1);
  CHECK(record.first_wrong.number == 1);
}

TEST_CASE("a kit counts, sorts and selects, by the Api where it has memory for that") {
  constexpr std::size_t limit = 5;
  const std::vector<std::int32_t> keys{3, 0, 3, 1, 0, 3, 4};
  for (const bool by_api : {false, true}) {
    bench with({work_order::late});
    const memory_type workspace(with.gpu, with.kit.workspace_bytes());
    if (by_api) with.kit.use_workspace({workspace.data(), workspace.size_bytes()});
    std::memcpy(with.on_host<std::int32_t>(0), keys.data(), keys.size() * 4);
    with.upload();
    const belay::view<const std::int32_t, 1> values{with.on_device<std::int32_t>(0), {keys.size()}};
    const belay::view<std::int32_t, 1> places{with.on_device<std::int32_t>(256), {keys.size()}};
    const belay::view<std::int64_t, 1> counts{with.on_device<std::int64_t>(512), {limit}};
    with.kit.histogram(values, counts);
    with.kit.sort(values, limit, places);
    with.kit.each(1, belay::kernel::fill<std::int32_t>{places.data() + 1, -1});
    with.kit.select({places.data(), {keys.size()}}, {with.on_device<std::int32_t>(1024), {keys.size()}},
                    with.on_device<std::int64_t>(1280));
    with.download();
    const auto list = [&](std::size_t byte, std::size_t count, auto like) {
      const auto* const first = with.on_host<decltype(like)>(byte);
      return std::vector<decltype(like)>(first, first + count);
    };
    CHECK(list(512, limit, std::int64_t()) == std::vector<std::int64_t>{2, 1, 0, 3, 1});
    CHECK(list(256, keys.size(), std::int32_t()) == std::vector<std::int32_t>{3, -1, 4, 2, 1, 5, 6});
    CHECK(list(1024, 6, std::int32_t()) == std::vector<std::int32_t>{0, 2, 3, 4, 5, 6});
    CHECK(list(1280, 1, std::int64_t()).front() == 6);
    CHECK(std::count(with.api.calls().begin(), with.api.calls().end(), "sort") == (by_api ? 1 : 0));
    if (!by_api) continue;
    with.api.sort_bytes_of_key = 73;
    with.kit.sort({values.data(), {7}}, limit, places);
    with.api.sort_bytes_of_key = 74;
    CHECK_THROWS_WITH_AS(with.kit.sort({values.data(), {7}}, limit, places),
                         doctest::Contains("a sort of 7 keys needs 518 bytes of scratch memory, and the kit has 512"),
                         belay::backend_error);
    with.kit.stream().synchronize();
  }
}

TEST_CASE(
    "rows are added to those of a table by sorting, in pieces that fit, with the bits of one row after the other") {
  struct shape {
    std::size_t rows, width, limit, sorts;  // 64 keys and places fill the scratch memory
  };
  enum class index_kind { scattered, one };
  for (const shape& of : {shape{0, 4, 5, 0},
                          {1, 4, 5, 0},
                          {31, 4, 5, 0},
                          {32, 4, 5, 1},
                          {64, 7, 3, 1},
                          {65, 8, 40, 2},
                          {200, 1, 5, 4},
                          {200, 12, 0x7fffffff, 0}})
    for (const index_kind kind : {index_kind::scattered, index_kind::one}) {
      CAPTURE(of.rows);
      constexpr std::size_t table_at = 2048, in_at = 4096, table_size = 480;
      bench with({work_order::late});
      const memory_type workspace(with.gpu, with.kit.workspace_bytes());
      with.kit.use_workspace({workspace.data(), workspace.size_bytes()});
      for (std::size_t i = 0; i < of.rows; ++i)  // some are no index of a row
        with.on_host<std::int32_t>(0)[i] = kind == index_kind::one ? 2 : static_cast<std::int32_t>(i * i % 7) - 1;
      fill_numbers(with.on_host<float>(table_at), table_size);
      fill_numbers(with.on_host<float>(in_at), of.rows * of.width);
      for (std::size_t i = 0; i < of.rows * of.width; ++i)  // so that another order has other bits
        with.on_host<float>(in_at)[i] *= static_cast<float>(1 + i % 11 * i);
      with.upload();
      const auto added = [&](float* in, std::int32_t* index, float* table) {
        return belay::kernel::accumulate_rows<float, std::int32_t>{in, index, of.rows, table, of.width, of.limit};
      };
      const std::size_t before = with.api.calls().size();
      with.kit.add_rows(
          added(with.on_device<float>(in_at), with.on_device<std::int32_t>(0), with.on_device<float>(table_at)));
      CHECK(std::count(with.api.calls().begin() + static_cast<std::ptrdiff_t>(before), with.api.calls().end(),
                       "sort") == static_cast<std::ptrdiff_t>(of.sorts));
      std::vector<float> expected(with.on_host<float>(table_at), with.on_host<float>(table_at) + table_size);
      const auto all = added(with.on_host<float>(in_at), with.on_host<std::int32_t>(0), expected.data());
      belay::kernel::for_each_row(all.blocks(), all);
      with.download();
      CHECK(std::equal(expected.begin(), expected.end(), with.on_host<float>(table_at)));
    }
}
