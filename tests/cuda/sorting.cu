// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Counting, sorting and selecting by CUB, beside the work of one thread that says what they do; and rows that
// are added to those of a table after a sorting, with the bits of the host.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>

#include "belay/backend/cuda.hpp"
#include "belay/backend/cuda/runtime_api.cuh"
#include "belay/device.hpp"
#include "belay/kernel.hpp"
#include "support/card.hpp"

namespace {

using api_type = belay::cuda::runtime_api;
using kit_type = belay::cuda::kit<api_type>;

static_assert(belay::sorting_kit<kit_type> && !belay::sorting_kit<belay::host_kit<>>);

// Keys, places and positions, then counts and the number of positions.
constexpr std::size_t keys = 5000, limit = 37, bytes = 3 * keys * 4 + limit * 8 + 8;

struct place {
  std::byte* base;
  [[nodiscard]] std::int32_t* number(std::size_t array) const {
    return reinterpret_cast<std::int32_t*>(base) + array * keys;
  }
  [[nodiscard]] std::int64_t* count(std::size_t array) const {
    return reinterpret_cast<std::int64_t*>(base + 3 * keys * 4) + array * limit;
  }
  void fill() const {
    std::memset(base, 0, bytes);
    for (std::size_t i = 0; i < keys; ++i) number(0)[i] = static_cast<std::int32_t>(i * i % (limit - 1));
  }
  template <class Kit>
  void sort_by(Kit& kit, std::size_t some) const {
    const belay::view<const std::int32_t, 1> values{number(0), {some}};
    kit.histogram(values, {count(0), {limit}});
    kit.sort(values, limit, {number(1), {some}});
    kit.select({number(1), {some}}, {number(2), {some}}, count(1));
  }
};

struct one_thread {
  void histogram(belay::view<const std::int32_t, 1> values, belay::view<std::int64_t, 1> counts) {
    belay::kernel::counted_values{values, counts}();
  }
  void sort(belay::view<const std::int32_t, 1> all, std::size_t below, belay::view<std::int32_t, 1> places) {
    belay::kernel::sorted_places{all, below, places}();
  }
  void select(belay::view<const std::int32_t, 1> values, belay::view<std::int32_t, 1> positions, std::int64_t* count) {
    belay::kernel::selected_positions{values, positions, count}();
  }
};

bool is_same(const belay::cuda::device<api_type>& gpu, std::size_t some) {
  const belay::cuda::device_memory<api_type> memory(gpu, bytes);
  const belay::cuda::pinned_memory<api_type> here(gpu, bytes), expected(gpu, bytes);
  kit_type kit(gpu);
  const belay::cuda::device_memory<api_type> workspace(gpu, kit.workspace_bytes());
  kit.use_workspace({workspace.data(), workspace.size_bytes()});
  place{here.data()}.fill();
  place{expected.data()}.fill();
  kit.stream().copy(memory.data(), here.data(), bytes);
  place{memory.data()}.sort_by(kit, some);
  kit.stream().copy(here.data(), memory.data(), bytes);
  kit.stream().synchronize();
  one_thread host;
  place{expected.data()}.sort_by(host, some);
  return std::memcmp(here.data(), expected.data(), bytes) == 0;
}

// Of as many keys as its Api has room for, and not of more.
bool sorts_within_scratch(std::size_t some, std::size_t scratch_bytes) {
  api_type api(0, scratch_bytes);
  const belay::cuda::device<api_type> gpu(api);
  kit_type kit(gpu);
  const belay::cuda::device_memory<api_type> memory(gpu, 8 * some), workspace(gpu, kit.workspace_bytes());
  kit.use_workspace({workspace.data(), workspace.size_bytes()});
  auto* const numbers = reinterpret_cast<std::int32_t*>(memory.data());
  kit.each(some, belay::kernel::fill<std::int32_t>{numbers, 1});
  const bool fits = api_type::sort_bytes(some, limit) <= scratch_bytes;
  if (api_type::sort_bytes(some, std::size_t{1} << 31) > api_type::scratch_for(some)) return false;
  try {
    kit.sort({numbers, {some}}, limit, {numbers + some, {some}});
    kit.stream().synchronize();
    return fits;
  } catch (const belay::backend_error& problem) {
    return !fits && problem.about().call == "sort";
  }
}

// Rows whose indices are `index_of(row)`, beside the host, which adds one row after the other.
template <class IndexOf>
bool adds_alike(const belay::cuda::device<api_type>& gpu, std::size_t rows, std::size_t width, IndexOf index_of) {
  const std::size_t table = limit * width, all_bytes = (table + rows * width + rows) * 4;
  const belay::cuda::device_memory<api_type> memory(gpu, all_bytes);
  const belay::cuda::pinned_memory<api_type> here(gpu, all_bytes), expected(gpu, all_bytes);
  kit_type kit(gpu);
  const belay::cuda::device_memory<api_type> workspace(gpu, kit.workspace_bytes());
  kit.use_workspace({workspace.data(), workspace.size_bytes()});
  const auto added = [&](std::byte* base) {
    auto* const sums = reinterpret_cast<float*>(base);
    const float* const in = sums + table;
    return belay::kernel::accumulate_rows<float, std::int32_t>{
        in, reinterpret_cast<const std::int32_t*>(in + rows * width), rows, sums, width, limit};
  };
  for (std::byte* const base : {here.data(), expected.data()}) {
    for (std::size_t i = 0; i < table + rows * width; ++i)
      reinterpret_cast<float*>(base)[i] = static_cast<float>(i % 101) / 101.0F * static_cast<float>(1 + i % 7 * i);
    for (std::size_t row = 0; row < rows; ++row)
      reinterpret_cast<std::int32_t*>(base)[table + rows * width + row] = index_of(row);
  }
  kit.stream().copy(memory.data(), here.data(), all_bytes);
  kit.add_rows(added(memory.data()));
  kit.stream().copy(here.data(), memory.data(), all_bytes);
  kit.stream().synchronize();
  belay::kernel::for_each_row(added(expected.data()).blocks(), added(expected.data()));
  return std::memcmp(here.data(), expected.data(), all_bytes) == 0;
}

bool adds_rows(const belay::cuda::device<api_type>& gpu) {
  const auto scattered = [](std::size_t row) { return static_cast<std::int32_t>(row * row % (limit + 3)) - 1; };
  const auto one = [](std::size_t) { return std::int32_t{5}; };
  bool all = true;
  for (const std::size_t rows : {std::size_t{1}, std::size_t{33}, keys})
    for (const std::size_t width : {std::size_t{7}, std::size_t{72}, std::size_t{1024}})
      all = all && adds_alike(gpu, rows, width, scattered) && adds_alike(gpu, rows, width, one);
  return all;
}

}  // namespace

int main() {
  api_type api;
  try {
    const belay::cuda::device<api_type> gpu(api);
    const bool all = is_same(gpu, keys) && is_same(gpu, 1) && is_same(gpu, 0) &&
                     sorts_within_scratch(2'000'000, api_type::scratch_for(2'000'000)) &&
                     sorts_within_scratch(2'000'000, api_type::usual_scratch_bytes);
    std::printf("sorted by host and device: %s\n", all ? "alike" : "not alike");
    const bool added = adds_rows(gpu);
    std::printf("rows added by host and device: %s\n", added ? "alike" : "not alike");
    return all && added ? 0 : 1;
  } catch (const belay::backend_error& problem) {
    std::printf("no device: compiled and linked (%s)\n", problem.what());
    return problem.about().call == "open" ? test::code_without_card() : 1;
  }
}
