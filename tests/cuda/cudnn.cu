// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Attention in bf16 by cuDNN, beside the own form of the CUDA backend: near it, with the same bits each time, and in
// the memory that a formula says. Without a device it is compiled and linked.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <vector>

#include "belay/backend/cuda.hpp"
#include "belay/backend/cuda/cudnn_attention.cuh"
#include "belay/backend/cuda/runtime_api.cuh"
#include "belay/core/dtype.hpp"
#include "belay/device.hpp"
#include "support/card.hpp"

namespace {

using belay::bf16;
using api_type = belay::cuda::attends_by<belay::cuda::cudnn_attention, belay::cuda::runtime_api>;
using kit_type = belay::cuda::kit<api_type>;

// Memory that an attention reads and writes, registered.
struct attended {
  attended(const belay::cuda::device<api_type>& gpu, const belay::attention_sizes& of)
      : sizes(of),
        rows(2 * of.length),
        queries(of.heads * of.head_size),
        keys(of.kv_heads * of.head_size),
        width(queries + 2 * keys),
        memory(gpu, bytes()) {
    packed = reinterpret_cast<bf16*>(memory.data());
    dcontext = reinterpret_cast<float*>(packed + rows * width);
    context = reinterpret_cast<bf16*>(dcontext + rows * queries);
    gradients = reinterpret_cast<float*>(context + rows * queries);
    log_sums = gradients + rows * width;
    for (std::size_t i = 0; i < rows * width; ++i)
      packed[i] = bf16(0.0625F * static_cast<float>((i * 7 + i / 5) % 37) - 1.1F);
    for (std::size_t i = 0; i < rows * queries; ++i)
      dcontext[i] = 0.03125F * static_cast<float>((i * 3 + i / 7) % 31) - 0.47F;
  }
  [[nodiscard]] std::size_t bytes() const {
    return rows * (2 * width + 4 * queries + 2 * queries + 4 * width + 4 * sizes.heads) + 256;
  }
  void attend(kit_type& kit) const {
    const auto q = [&](auto* x) { return belay::operand(x, rows, queries, width); };
    const auto k = [&](auto* x) { return belay::operand(x + queries, rows, keys, width); };
    const auto v = [&](auto* x) { return belay::operand(x + queries + keys, rows, keys, width); };
    const belay::operand<bf16> o{context, rows, queries, queries};
    kit.attention(belay::attention_call<bf16>{sizes, q(packed), k(packed), v(packed), o, log_sums});
    kit.attention(belay::attention_gradient_call<bf16>{sizes,
                                                       q(packed),
                                                       k(packed),
                                                       v(packed),
                                                       o,
                                                       log_sums,
                                                       {dcontext, rows, queries, queries},
                                                       q(gradients),
                                                       k(gradients),
                                                       v(gradients)});
    kit.stream().synchronize();
  }
  // Context, gradients and logarithms.
  [[nodiscard]] std::vector<double> results() const {
    std::vector<double> out;
    for (std::size_t i = 0; i < rows * queries; ++i) out.push_back(static_cast<double>(context[i]));
    for (std::size_t i = 0; i < rows * (width + sizes.heads); ++i) out.push_back(static_cast<double>(gradients[i]));
    return out;
  }

  belay::attention_sizes sizes;
  std::size_t rows, queries, keys, width;
  belay::cuda::pinned_memory<api_type> memory;
  bf16* packed;
  float* dcontext;
  bf16* context;
  float* gradients;
  float* log_sums;
};

// Whether both are near each other, and the library's bits are the same twice.
bool agrees(const belay::attention_sizes& sizes) {
  const auto attend_by = [&](const belay::cuda::attention_extent& most, int times) {
    api_type api(most);
    const belay::cuda::device<api_type> gpu(api, 3);
    kit_type kit(gpu);
    const belay::cuda::device_memory<api_type> workspace(gpu, kit.workspace_bytes());
    kit.use_workspace({workspace.data(), workspace.size_bytes()});
    const attended one(gpu, sizes);
    std::vector<std::vector<double>> out;
    for (int i = 0; i < times; ++i) one.attend(kit), out.push_back(one.results());
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < 10; ++i) one.attend(kit);
    const std::chrono::duration<double, std::micro> taken = std::chrono::steady_clock::now() - begin;
    std::printf("  forward and backward: %.0f us, %zu bytes of workspace\n", taken.count() / 10, api.attention_bytes());
    for (const belay::kit_choices::choice& each : kit.choices().all())
      std::printf("  %s: %s\n", each.text.c_str(), each.way == 0 ? "own form" : "cuDNN");
    return out;
  };
  const auto by_library = attend_by({sizes, 2 * sizes.length}, 3);
  const std::vector<double> own = attend_by({}, 1)[0];
  double worst = 0;
  for (std::size_t i = 0; i < own.size(); ++i)
    worst = std::max(worst, std::abs(by_library[0][i] - own[i]) / (1 + std::abs(own[i])));
  const bool same = by_library[0] == by_library[1] && by_library[0] == by_library[2];
  std::printf("heads %zu of %zu over %zu, length %zu: worst difference from the own form %.2e, bits %s\n", sizes.heads,
              sizes.head_size, sizes.kv_heads, sizes.length, worst, same ? "the same each time" : "that change");
  return same && worst < 2e-2;
}

}  // namespace

int main() {
  int devices = 0;
  const bool has_device = cudaGetDeviceCount(&devices) == cudaSuccess && devices > 0;
  try {
    bool right = agrees({4, 4, 64, 256});
    right = agrees({8, 2, 128, 192}) && right;
    right = agrees({16, 4, 128, 1024}) && right;
    return right ? 0 : 1;
  } catch (const belay::backend_error& problem) {
    std::printf("%s\n", problem.what());
    return !has_device && problem.about().call == "open" ? test::code_without_card() : 1;
  }
}
