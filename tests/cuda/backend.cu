// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The CUDA backend over the real runtime and cuBLAS. Without a device it is refused in one clear backend_error;
// with one its kernels, products and copies give what the host's kit gives.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "belay/backend/cuda.hpp"
#include "belay/backend/cuda/named_ranges.cuh"
#include "belay/backend/cuda/runtime_api.cuh"
#include "belay/core/dtype.hpp"
#include "belay/device.hpp"
#include "belay/kernel.hpp"
#include "belay/step.hpp"
#include "support/card.hpp"
#include "unit/backend/bent_network.hpp"

namespace {

using api_type = belay::cuda::runtime_api;
using kit_type = belay::cuda::kit<api_type>;

static_assert(belay::cuda::device_api<api_type>);
using api_with_ranges = belay::cuda::named_ranges<api_type>;
static_assert(belay::cuda::device_api<api_with_ranges> && belay::cuda::attending_api<api_with_ranges, float>);
static_assert(belay::compute_kit<kit_type, float> && belay::compute_kit<kit_type, double>);
static_assert(belay::multiplying_kit<kit_type, belay::bf16, belay::bf16, belay::bf16>);
static_assert(belay::clocked_stream<belay::cuda::stream<api_type>>);

constexpr std::size_t bytes = std::size_t{1} << 16;
constexpr std::size_t rows = 24, width = 28, columns = 20, experts = 3;

// Operands and results at a place, in KiB.
template <class T>
T* at(std::byte* base, std::size_t kib) {
  return reinterpret_cast<T*>(base + kib * 1024);
}

void fill(std::byte* base) {
  for (std::size_t i = 0; i < 2048; ++i) at<float>(base, 0)[i] = 0.125F * static_cast<float>(i % 23) - 1.0F;
  for (std::size_t i = 0; i < 1024; ++i) at<belay::bf16>(base, 8)[i] = belay::bf16(static_cast<float>(i % 13) - 6.0F);
  for (std::size_t i = 0; i < 1024; ++i) at<double>(base, 48)[i] = 0.25 * static_cast<double>(i % 11) - 1;
  for (std::size_t e = 0; e < experts; ++e) at<std::int32_t>(base, 12)[e] = static_cast<std::int32_t>(10 * e);
}

template <class Kit>
void compute(Kit& kit, std::byte* base) {
  const belay::operand<const float> a{at<float>(base, 0), rows, width, width},
      b{at<float>(base, 4), columns, width, width};
  const belay::operand<float> c{at<float>(base, 16), rows, columns, columns};
  kit.product(belay::product_call<float>{c, a, belay::transposed(b), 2});
  kit.product(belay::product_call<float>{c, a, belay::transposed(b), 1, 0.5F});
  kit.product(
      belay::product_call<float>{{at<float>(base, 36), width, columns, columns}, belay::transposed(a), c, 0.125F});
  kit.product(belay::product_call<double>{
      {at<double>(base, 56), 8, 8, 8}, {at<double>(base, 48), 8, 16, 16}, {at<double>(base, 50), 16, 8, 8}});
  kit.teams(rows, belay::kernel::causal_softmax_rows<float>{c.data, at<float>(base, 20), columns});
  kit.each(rows * columns, belay::kernel::axpy<float>{0.5F, at<float>(base, 20), c.data});
  const belay::view<const std::int32_t, 1> ends{at<const std::int32_t>(base, 12), {experts}};
  kit.grouped(belay::grouped_rows_call<float>{
      {at<float>(base, 24), rows, columns, columns}, a, {at<float>(base, 0), experts, width, columns}, ends});
  kit.grouped(belay::grouped_stack_call<float>{{at<float>(base, 28), experts, width, columns},
                                               belay::transposed(a),
                                               {at<float>(base, 20), rows, columns, columns},
                                               ends});
  const belay::operand<const belay::bf16> narrow{at<belay::bf16>(base, 8), rows, width, width};
  kit.product(belay::product_call<belay::bf16>{
      {at<belay::bf16>(base, 40), rows, rows, rows}, narrow, belay::transposed(narrow)});
  // Operands that differ in type, and experts' products of narrow ones.
  kit.product(belay::product_call<float, float, belay::bf16>{
      {at<float>(base, 58), rows, rows, rows}, a, belay::transposed(narrow)});
  const belay::operand_stack<const belay::bf16> matrices{narrow.data, experts, width, 8};
  kit.grouped(belay::grouped_rows_call<float, belay::bf16>{{at<float>(base, 42), rows, 8, 8}, narrow, matrices, ends});
  kit.grouped(belay::grouped_stack_call<float, belay::bf16>{
      {at<float>(base, 44), experts, width, 8}, belay::transposed(narrow), {narrow.data, rows, 8, width}, ends});
}

bool are_close(const std::byte* x, const std::byte* y) {
  bool close = true;
  const auto compare = [&](double a, double b) { close = close && std::abs(a - b) <= 1e-4 * (1 + std::abs(a)); };
  for (std::size_t kib : {16, 20, 24, 28, 36, 42, 44, 58}) {
    const auto* const p = reinterpret_cast<const float*>(x + kib * 1024);
    const auto* const q = reinterpret_cast<const float*>(y + kib * 1024);
    for (std::size_t i = 0; i < rows * columns; ++i) compare(static_cast<double>(p[i]), static_cast<double>(q[i]));
  }
  for (std::size_t i = 0; i < 64; ++i)
    compare(reinterpret_cast<const double*>(x + 56 * 1024)[i], reinterpret_cast<const double*>(y + 56 * 1024)[i]);
  for (std::size_t i = 0; i < rows * rows; ++i)
    compare(static_cast<double>(static_cast<float>(reinterpret_cast<const belay::bf16*>(x + 40 * 1024)[i])),
            static_cast<double>(static_cast<float>(reinterpret_cast<const belay::bf16*>(y + 40 * 1024)[i])));
  return close;
}

// Whether an engine over the device trains as one of the host does.
bool trains(const belay::cuda::device<api_type>& gpu) {
  using namespace bent_network;
  const auto train_by = [](auto& engine, const auto& memory, const auto& staged) {
    return train(engine, memory, staged, forgets::nothing, [] {});
  };
  belay::tier_meter meter, host_meter;
  const belay::cuda::device_memory<api_type> memory(gpu, 1 << 13);
  const belay::cuda::pinned_memory<api_type> staged(gpu, 1 << 13);
  belay::engine<belay::cuda::device_memory<api_type>, kit_type> engine(
      belay::cuda::device_memory<api_type>(gpu, 1 << 14), meter, kit_type(gpu), belay::freed_memory::poisoned);
  belay::host_engine host(belay::host_pages(1 << 14), host_meter);
  const belay::host_pages host_memory(1 << 13), host_staged(1 << 13);
  const std::vector<double> got = train_by(engine, memory, staged), expected = train_by(host, host_memory, host_staged);
  bool close = got.size() == expected.size();
  for (std::size_t i = 0; close && i < got.size(); ++i)
    close = std::abs(got[i] - expected[i]) <= 2e-2 * (1 + std::abs(expected[i]));  // AdamW turns noise into steps
  return close;
}

struct looked_up {
  belay::kernel::findings_note found;
  BELAY_HD void operator()(std::size_t i) const { static_cast<void>(found.below(static_cast<std::int32_t>(i), 10, i)); }
};

// Whether what many threads note at once is counted, and one of them kept whole.
bool notes(const belay::cuda::device<api_type>& gpu) {
  using record_type = belay::kernel::findings_record;
  const belay::cuda::device_memory<api_type> memory(gpu, sizeof(record_type));
  const belay::cuda::pinned_memory<api_type> here(gpu, sizeof(record_type));
  kit_type kit(gpu);
  kit.stream().copy(memory.data(), here.data(), sizeof(record_type));
  kit.each(100000, looked_up{{reinterpret_cast<record_type*>(memory.data()), {}}});
  kit.stream().copy(here.data(), memory.data(), sizeof(record_type));
  kit.stream().synchronize();
  const auto& got = *reinterpret_cast<const record_type*>(here.data());
  return got.wrong == 99990 && got.first_wrong.number >= 10 && got.first_wrong.limit == 10 &&
         got.first_wrong.value == static_cast<std::int64_t>(got.first_wrong.number);
}

// Whether products of experts, of some tiles and odd ends, are those of the host to the bit: of small integers, so that
// any order of a sum is right. In memory of the host, which kernels read too.
bool multiplies_by_experts(const belay::cuda::device<api_type>& gpu, std::size_t n, std::size_t k) {
  constexpr std::size_t all_rows = 330, count = 6;
  constexpr std::int32_t ends_of[count]{0, 1, 1, 64, 192, 321};
  const std::size_t results = all_rows * n + 2 * count * n * k;
  const belay::cuda::pinned_memory<api_type> there(gpu, 4 * (all_rows * (n + k) + 2 * count * n * k + results));
  auto* const left = reinterpret_cast<belay::bf16*>(there.data());
  belay::bf16 *const right = left + all_rows * k, *const gradients = right + count * n * k,
                     *const rows_out = gradients + all_rows * n;
  auto* const stack_out = reinterpret_cast<float*>(rows_out + all_rows * n + all_rows * n % 2);
  auto* const ends = reinterpret_cast<std::int32_t*>(stack_out + count * n * k);
  std::memcpy(ends, ends_of, sizeof ends_of);
  for (std::size_t i = 0; i < static_cast<std::size_t>(rows_out - left); ++i)
    left[i] = belay::bf16(static_cast<float>((i * 7 + i / 5) % 9) - 4.0F);
  const auto multiply = [&](auto& kit, belay::bf16* to, float* stack_to) {
    const belay::operand<const belay::bf16> a{left, all_rows, k, k}, d{gradients, all_rows, n, n};
    const belay::operand_stack<const belay::bf16> b{right, count, n, k};
    kit.grouped(belay::grouped_rows_call<belay::bf16>{{to, all_rows, n, n}, a, belay::transposed(b), {ends, {count}}});
    kit.grouped(belay::grouped_stack_call<float, belay::bf16>{
        {stack_to, count, n, k}, belay::transposed(d), a, {ends, {count}}});
    kit.grouped(belay::grouped_rows_call<belay::bf16>{{left, all_rows, k, k}, d, b, {ends, {count}}});
  };
  const std::size_t changed = all_rows * k;
  const std::vector<belay::bf16> before(left, left + changed);
  std::memset(rows_out, 0, (all_rows * n + count * n * k) * sizeof(float));
  std::memcpy(ends, ends_of, sizeof ends_of);
  kit_type kit(gpu);
  multiply(kit, rows_out, stack_out);
  kit.stream().synchronize();
  const std::vector<belay::bf16> input_gradient(left, left + changed);
  std::copy(before.begin(), before.end(), left);
  std::vector<belay::bf16> rows_expected(all_rows * n, belay::bf16(0.0F));
  std::vector<float> stack_expected(count * n * k);
  belay::host_kit<> host;
  multiply(host, rows_expected.data(), stack_expected.data());
  return std::memcmp(rows_expected.data(), rows_out, rows_expected.size() * sizeof(belay::bf16)) == 0 &&
         std::memcmp(stack_expected.data(), stack_out, stack_expected.size() * sizeof(float)) == 0 &&
         std::memcmp(input_gradient.data(), left, changed * sizeof(belay::bf16)) == 0;
}

// Whether a product of bf16 whose sum cuBLASLt likes to cut into parts has the same bits each time, also of another
// kit, which takes the same algorithm, and adds to what was there.
bool repeats_bits(const belay::cuda::device<api_type>& gpu) {
  constexpr std::size_t side = 64, depth = 1 << 16;
  const belay::cuda::pinned_memory<api_type> there(gpu, 4 * side * depth + 4 * side * side);
  auto* const left = reinterpret_cast<belay::bf16*>(there.data());
  auto* const sums = reinterpret_cast<float*>(left + 2 * side * depth);
  for (std::size_t i = 0; i < 2 * side * depth; ++i)
    left[i] = belay::bf16(0.37F * static_cast<float>((i * 7 + i / 5) % 19) - 3.1F);
  std::vector<std::vector<float>> results;
  std::vector<std::uint64_t> ways;
  const belay::cuda::device_memory<api_type> workspace(gpu, kit_type(gpu).workspace_bytes());
  for (int of_kit = 0; of_kit < 2; ++of_kit) {
    kit_type kit(gpu);
    kit.use_workspace({workspace.data(), workspace.size_bytes()});
    for (int again = 0; again < 8; ++again) {
      std::fill_n(sums, side * side, 0.5F);
      kit.product(belay::product_call<float, belay::bf16>{
          {sums, side, side, side}, {left, side, depth, depth}, {left + side * depth, depth, side, side}, 1, 1});
      kit.stream().synchronize();
      results.emplace_back(sums, sums + side * side);
    }
    if (kit.choices().all().size() != 1) return false;
    ways.push_back(kit.choices().all()[0].way);
  }
  return ways[0] == ways[1] && std::count(results.begin(), results.end(), results[0]) == 16;
}

int on_device(const belay::cuda::device<api_type>& gpu) {
  const belay::host_pages expected(bytes);
  fill(expected.data());
  belay::host_kit<> host;
  compute(host, expected.data());

  const belay::cuda::device_memory<api_type> memory(gpu, bytes);
  const belay::cuda::pinned_memory<api_type> there(gpu, bytes), back(gpu, bytes);
  const belay::cuda::device_memory<api_type> workspace(gpu, kit_type(gpu).workspace_bytes());
  kit_type kit(gpu);
  belay::cuda::stream<api_type> copies(gpu, belay::stream_kind::copy);
  kit.use_workspace({workspace.data(), workspace.size_bytes()});
  fill(there.data());
  copies.copy(memory.data(), there.data(), bytes);
  kit.stream().wait(copies.record());
  compute(kit, memory.data());
  copies.wait(kit.stream().record());
  copies.copy(back.data(), memory.data(), bytes);
  copies.record().synchronize();
  const bool close = are_close(expected.data(), back.data()) && trains(gpu) && notes(gpu) &&
                     multiplies_by_experts(gpu, 70, 37) && multiplies_by_experts(gpu, 72, 40) &&
                     multiplies_by_experts(gpu, 136, 104) && repeats_bits(gpu);
  std::printf("run on host and device: %s\n", close ? "alike" : "not alike");
  return close ? 0 : 1;
}

}  // namespace

int main() {
  api_type api;
  int devices = 0;
  const bool has_device = cudaGetDeviceCount(&devices) == cudaSuccess && devices > 0;
  try {
    const belay::cuda::device<api_type> gpu(api, 3);
    if (!has_device) {
      std::printf("no device, and no error\n");
      return 1;
    }
    return on_device(gpu);
  } catch (const belay::backend_error& problem) {
    std::printf("%s\n", problem.what());
    const std::string what = problem.what();
    return !has_device && problem.about().call == "open" && problem.about().rank == 3 &&
                   what.find("rank 3: open: cuda") != std::string::npos &&
                   what.find("is a driver installed") != std::string::npos &&
                   what.find("backend.cu:") != std::string::npos
               ? test::code_without_card()
               : 1;
  }
}
