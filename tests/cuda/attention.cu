// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The attention of the CUDA backend over the real runtime, beside that of the examples' model on the host. Without a
// device it is compiled and linked.
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <vector>

#include "belay/backend/cuda.hpp"
#include "belay/backend/cuda/runtime_api.cuh"
#include "belay/device.hpp"
#include "belay/step/arithmetic.hpp"
#include "model/causal_attention.hpp"
#include "support/card.hpp"

namespace {

using api_type = belay::cuda::runtime_api;
using kit_type = belay::cuda::kit<api_type>;

static_assert(belay::attention_kit<kit_type, float> && belay::attention_kit<kit_type, belay::bf16>);
static_assert(belay::attention_kit<kit_type, double>);

template <class Kit>
struct bare_frame : belay::frame_arithmetic<bare_frame<Kit>> {
  explicit bare_frame(Kit& computes) : of(&computes) {}
  [[nodiscard]] Kit& kit() const { return *of; }
  [[nodiscard]] static const char* layer() { return "attention"; }
  [[nodiscard]] static std::size_t layer_index() { return 0; }
  Kit* of;
};

constexpr std::size_t length = 100, rows = 2 * length;

template <class T>
struct place {
  using number = belay::compute_type_t<T>;
  model::attention_shape shape;

  [[nodiscard]] std::size_t read() const {
    return rows * (shape.packed_width() * sizeof(T) + shape.query_width() * sizeof(number));
  }
  [[nodiscard]] std::size_t written() const {
    return rows * (shape.query_width() * sizeof(T) + shape.packed_width() * sizeof(number)) +
           2 * shape.heads * length * sizeof(number);
  }
  [[nodiscard]] std::size_t bytes() const {
    return read() + written() + model::causal_attention<T>(shape, length).backward_scratch() * sizeof(number);
  }
  void fill(std::byte* base) const {
    auto* const dcontext = reinterpret_cast<number*>(base);
    for (std::size_t i = 0; i < rows * shape.query_width(); ++i)
      dcontext[i] = number(0.0625) * static_cast<number>(i % 31) - 1;
    auto* const packed = reinterpret_cast<T*>(dcontext + rows * shape.query_width());
    for (std::size_t i = 0; i < rows * shape.packed_width(); ++i)
      packed[i] = static_cast<T>(number(0.0625) * static_cast<number>(i * 7 % 37) - 1);
  }
  // Gradients, logarithms and context lie behind what is read, then scratch.
  template <class Kit>
  void attend(Kit& kit, std::byte* base) const {
    const std::size_t width = shape.packed_width(), query = shape.query_width();
    auto* const dcontext = reinterpret_cast<number*>(base);
    auto* const packed = reinterpret_cast<T*>(dcontext + rows * query);
    auto* const dpacked = reinterpret_cast<number*>(base + read());
    number* const log_sums = dpacked + rows * width;
    number* const scratch = log_sums + 2 * shape.heads * length;
    auto* const context = reinterpret_cast<T*>(scratch + model::causal_attention<T>(shape, length).backward_scratch());
    const model::causal_attention<T> heads(shape, length);
    const belay::operand<const T> in{packed, rows, width, width};
    const belay::operand<T> out{context, rows, query, query};
    const belay::view<number, 3> sums{log_sums, {2, shape.heads, length}};
    bare_frame<Kit> frame(kit);
    heads.forward(frame, {shape, length, in, out, sums, scratch});
    heads.backward(frame, {shape, length, in, out, sums, belay::operand<const number>{dcontext, rows, query, query},
                           belay::operand<number>{dpacked, rows, width, width}, scratch});
  }
  [[nodiscard]] double worst(const std::byte* x, const std::byte* y) const {
    const auto* const p = reinterpret_cast<const number*>(x + read());
    const auto* const q = reinterpret_cast<const number*>(y + read());
    double most = 0;
    for (std::size_t i = 0; i < rows * shape.packed_width() + 2 * shape.heads * length; ++i)
      most = std::fmax(most, std::isfinite(q[i]) ? std::abs(static_cast<double>(p[i] - q[i])) : 1e9);
    return most;
  }
};

template <class T>
bool is_close(const belay::cuda::device<api_type>& gpu, const model::attention_shape& shape, double limit) {
  const place<T> at{shape};
  const belay::host_pages expected(at.bytes());
  at.fill(expected.data());
  belay::host_kit<> host;
  at.attend(host, expected.data());
  const belay::cuda::device_memory<api_type> memory(gpu, at.bytes());
  const belay::cuda::pinned_memory<api_type> here(gpu, at.bytes());
  at.fill(here.data());
  kit_type kit(gpu);
  kit.stream().copy(memory.data(), here.data(), at.bytes());
  at.attend(kit, memory.data());
  kit.stream().copy(here.data(), memory.data(), at.bytes());
  kit.stream().synchronize();
  const double worst = at.worst(expected.data(), here.data());
  std::printf("%zu heads of %zu, elements of %zu bytes: differ by %g\n", shape.heads, shape.head_dim, sizeof(T), worst);
  return worst <= limit;
}

}  // namespace

int main() {
  api_type api;
  try {
    const belay::cuda::device<api_type> gpu(api);
    bool all = is_close<float>(gpu, {8, 4, 2, 64}, 1e-4) && is_close<float>(gpu, {8, 2, 2, 160}, 1e-4);
    for (const std::size_t head_dim : {64, 80, 128, 20})  // the last by tiles
      all = is_close<belay::bf16>(gpu, {8, 4, 2, head_dim}, 5e-2) && all;
    return all ? 0 : 1;
  } catch (const belay::backend_error& problem) {
    std::printf("no device: compiled and linked (%s)\n", problem.what());
    return problem.about().call == "open" ? test::code_without_card() : 1;
  }
}
