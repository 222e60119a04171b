// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// device [--quick]
//
// What Belay's kernels, copies and products reach on the GPU that is here, beside the GPU's own limits, in one run: a
// copy within the device, a kernel that reads and writes what AdamW does, a large copy of pinned memory, a product
// alone, and the launch of an empty kernel. Rounds interleave what is compared; each figure is a median. Ends with 1
// where one is short of its limit.
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdio>
#include <cstring>
#include <exception>
#include <string>
#include <vector>

#include "belay/backend/cuda.hpp"
#include "belay/backend/cuda/runtime_api.cuh"
#include "belay/kernel.hpp"
#include "cuda/figures.hpp"

namespace {

using api_type = belay::cuda::runtime_api;
using device_type = belay::cuda::device<api_type>;
using kit_type = belay::cuda::kit<api_type>;
using memory_type = belay::cuda::device_memory<api_type>;
using stream_type = belay::cuda::stream<api_type>;
constexpr std::size_t mib = std::size_t{1} << 20;

struct effort {
  std::size_t rounds = 15;
  std::size_t most = 1024 * mib;  // bytes of an array
};

// Reads four arrays and writes three of them, as AdamW does, and computes next to nothing.
struct passed_through {
  float* value;
  const float* gradient;
  float* first;
  float* second;
  BELAY_HD void operator()(std::size_t i) const {
    const float g = gradient[i];
    value[i] += g, first[i] += g, second[i] += g;
  }
  static constexpr std::size_t indices_of_pack = belay::kernel::pack_size<float>;
  [[nodiscard]] BELAY_HD bool packs() const noexcept {
    return belay::kernel::are_packs<indices_of_pack>(value, gradient, first, second);
  }
  BELAY_HD void pack(std::size_t i) const noexcept {
    auto a = belay::kernel::load_pack<indices_of_pack>(value, i);
    auto b = belay::kernel::load_pack<indices_of_pack>(first, i),
         c = belay::kernel::load_pack<indices_of_pack>(second, i);
    const auto g = belay::kernel::load_pack<indices_of_pack>(gradient, i);
    belay::kernel::run_pack<indices_of_pack>(passed_through{a.of, g.of, b.of, c.of});
    belay::kernel::store_pack(a, value, i);
    belay::kernel::store_pack(b, first, i);
    belay::kernel::store_pack(c, second, i);
  }
};

float* floats(std::byte* memory, std::size_t byte = 0) { return reinterpret_cast<float*>(memory + byte); }

// Kernels of indices beside a copy within the device, by bytes read and written a second.
void memory(const device_type& gpu, kit_type& kit, const effort& how, bench::figures& out) {
  for (const std::size_t bytes : {64 * mib, 256 * mib, 1024 * mib}) {
    if (bytes > how.most) continue;
    const memory_type arrays(gpu, 2 * bytes);
    float *const x = floats(arrays.data()), *const y = floats(arrays.data(), bytes);
    const std::size_t n = bytes / sizeof(float), calls = 2048 * mib / bytes;
    std::vector<double> copied, kernel, scaled, added;
    for (std::size_t r = 0; r <= how.rounds; ++r) {
      const double limit = bench::seconds_of(kit.stream(), calls, [&] { kit.stream().copy(y, x, bytes); }) /
                           static_cast<double>(2 * bytes);
      const auto share = [&](std::size_t moved, const auto& f) {
        return limit * static_cast<double>(moved) / bench::seconds_of(kit.stream(), calls, [&] { kit.each(n, f); });
      };
      const double by_kernel = share(2 * bytes, belay::kernel::copy<float>{x, y});
      const double by_scale = share(2 * bytes, belay::kernel::scale<float>{0.5F, x});
      const double by_axpy = share(3 * bytes, belay::kernel::axpy<float>{0.5F, x, y});
      if (r == 0) continue;  // warm
      copied.push_back(1e-9 / limit), kernel.push_back(by_kernel), scaled.push_back(by_scale), added.push_back(by_axpy);
    }
    const std::string size = " of " + std::to_string(bytes / mib) + " MiB";
    std::printf("copy within the device%s: %.0f GB/s\n", size.c_str(), bench::median(copied));
    out.at_least("each: copy" + size + " beside it", bench::median(kernel), 0.88);
    out.at_least("each: scale" + size + " beside it", bench::median(scaled), 0.88);
    out.at_least("each: axpy" + size + " beside it", bench::median(added), 0.88);
  }
}

void optimizer(const device_type& gpu, kit_type& kit, const effort& how, bench::figures& out) {
  const std::size_t bytes = how.most / 4, n = bytes / sizeof(float), calls = 8;
  const memory_type arrays(gpu, 4 * bytes);
  float *const value = floats(arrays.data()), *const gradient = floats(arrays.data(), bytes),
               *const first = floats(arrays.data(), 2 * bytes), *const second = floats(arrays.data(), 3 * bytes);
  kit.each(4 * n, belay::kernel::fill<float>{value, 0.01F});
  std::vector<double> shares, nanoseconds;
  for (std::size_t r = 0; r <= how.rounds; ++r) {
    const double limit =
        bench::seconds_of(kit.stream(), calls, [&] { kit.each(n, passed_through{value, gradient, first, second}); });
    const double took = bench::seconds_of(kit.stream(), calls, [&] {
      kit.each(n,
               belay::kernel::adamw<float>{value, gradient, first, second, belay::kernel::adamw_at_step<float>({}, 3)});
    });
    if (r == 0) continue;
    shares.push_back(limit / took), nanoseconds.push_back(1e9 * took / static_cast<double>(n));
  }
  std::printf("AdamW of %zu million parameters: %.4f ns a parameter\n", n >> 20U, bench::median(nanoseconds));
  out.at_least("AdamW beside reading and writing as much", bench::median(shares), 0.90);
}

// Copies of pinned memory in pieces, beside one large copy.
void pinned(const device_type& gpu, const effort& how, bench::figures& out) {
  const std::size_t all = how.most / 4;
  const memory_type there(gpu, all);
  const belay::cuda::pinned_memory<api_type> here(gpu, all);
  stream_type copies(gpu, belay::stream_kind::copy);
  for (const bool up : {true, false}) {
    std::byte *const to = up ? there.data() : here.data(), *const from = up ? here.data() : there.data();
    const char* const way = up ? "to the device" : "from the device";
    const auto took = [&](std::size_t piece) {
      return bench::seconds_of(copies, 1, [&] {
        for (std::size_t at = 0; at < all; at += piece) copies.copy(to + at, from + at, piece);
      });
    };
    for (const std::size_t piece : {4 * mib, 16 * mib, 64 * mib}) {
      if (piece > all) continue;
      std::vector<double> shares, speeds;
      for (std::size_t r = 0; r <= how.rounds; ++r) {
        const double best = took(all), pieces = took(piece);
        if (r == 0) continue;
        shares.push_back(best / pieces), speeds.push_back(1e-9 * static_cast<double>(all) / best);
      }
      if (piece == 4 * mib) std::printf("large copy %s: %.1f GB/s\n", way, bench::median(speeds));
      out.at_least(std::string("pinned copies of ") + std::to_string(piece / mib) + " MiB " + way + " beside it",
                   bench::median(shares), 0.93);
    }
  }
}

template <class T>
struct square_product {
  square_product(const device_type& gpu, std::size_t size) : n(size), memory(gpu, 3 * size * size * sizeof(T)) {}
  void queue(kit_type& kit) const {
    T* const first = reinterpret_cast<T*>(memory.data());
    const belay::operand<T> c = belay::view<T, 2>{first, {n, n}};
    const belay::operand<const T> left = belay::view<const T, 2>{first + n * n, {n, n}},
                                  right = belay::view<const T, 2>{first + 2 * n * n, {n, n}};
    kit.product(c, left, right, belay::compute_type_t<T>{1}, belay::compute_type_t<T>{0});
  }
  [[nodiscard]] double operations() const { return 2.0 * static_cast<double>(n) * static_cast<double>(n * n); }

  std::size_t n;
  memory_type memory;
};

// Products alone, and while the other streams carry state to the host and back.
template <class T>
void products(const char* type, const device_type& gpu, kit_type& kit, const effort& how, bench::figures& out) {
  const square_product<T> one(gpu, how.most == effort{}.most ? 8192 : 1024);
  const std::size_t bytes = 64 * mib, calls = sizeof(T) == 2 ? 32 : 8;
  const memory_type there(gpu, 2 * bytes);
  const belay::cuda::pinned_memory<api_type> here(gpu, 2 * bytes);
  stream_type up(gpu, belay::stream_kind::copy), down(gpu, belay::stream_kind::copy);
  std::vector<double> slowed, speeds;
  for (std::size_t r = 0; r <= how.rounds; ++r) {
    const double alone = bench::seconds_of(kit.stream(), calls, [&] { one.queue(kit); });
    const double span = alone * static_cast<double>(calls);
    for (std::size_t i = 0; static_cast<double>(i) * static_cast<double>(bytes) < span * 50e9 * 1.2; ++i) {
      up.copy(there.data(), here.data(), bytes);
      down.copy(here.data() + bytes, there.data() + bytes, bytes);
    }
    const double beside = bench::seconds_of(kit.stream(), calls, [&] { one.queue(kit); });
    up.synchronize(), down.synchronize();
    if (r == 0) continue;
    slowed.push_back(beside / alone), speeds.push_back(1e-12 * one.operations() / alone);
  }
  std::printf("product of %s, %zu^3: %.0f TFLOP/s\n", type, one.n, bench::median(speeds));
  out.at_most(std::string("product of ") + type + " beside copies both ways, over alone", bench::median(slowed), 1.02);
}

// Host time of a launch through the kit, and the device's time of an empty kernel.
void launches(kit_type& kit, const memory_type& some, const effort& how) {
  constexpr std::size_t calls = 2000;
  std::vector<double> queued, run;
  for (std::size_t r = 0; r <= how.rounds; ++r) {
    kit.stream().synchronize();
    const auto begin = std::chrono::steady_clock::now();
    for (std::size_t i = 0; i < calls; ++i) kit.each(1, belay::kernel::fill<float>{floats(some.data()), 1});
    queued.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() / calls);
    kit.stream().synchronize();
    run.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() / calls);
  }
  std::printf("a kernel of one index: %.2f us of the host, %.2f us until it has run\n", 1e6 * bench::median(queued),
              1e6 * bench::median(run));
}

// Forward and backward of a causal attention, beside the fastest products.
template <class T>
void attention(const char* type, const device_type& gpu, kit_type& kit, const effort& how) {
  const std::size_t length = how.most == effort{}.most ? 2048 : 256;
  constexpr std::size_t sequences = 2;
  const belay::attention_sizes sizes{16, 4, 128, length};
  const std::size_t rows = sequences * length, wide = sizes.heads * sizes.head_size,
                    narrow = sizes.kv_heads * sizes.head_size;
  const memory_type memory(gpu, rows * (3 * wide + 4 * narrow) * 4 + rows * sizes.heads * 4 + rows * wide * 8);
  std::byte* next = memory.data();
  const auto rows_of = [&]<class N>(N*, std::size_t width) {
    const belay::view<N, 2> out{reinterpret_cast<N*>(next), {rows, width}};
    next += rows * width * sizeof(N);
    return out;
  };
  using number = belay::compute_type_t<T>;
  const auto q = rows_of(static_cast<T*>(nullptr), wide), k = rows_of(static_cast<T*>(nullptr), narrow),
             v = rows_of(static_cast<T*>(nullptr), narrow), o = rows_of(static_cast<T*>(nullptr), wide);
  const auto d_o = rows_of(static_cast<number*>(nullptr), wide), dq = rows_of(static_cast<number*>(nullptr), wide),
             dk = rows_of(static_cast<number*>(nullptr), narrow), dv = rows_of(static_cast<number*>(nullptr), narrow);
  auto* const sums = reinterpret_cast<number*>(next);
  const belay::attention_call<T> forward{sizes, q, k, v, o, sums};
  const belay::attention_gradient_call<T> backward{sizes, q, k, v, o, sums, d_o, dq, dk, dv};
  std::vector<double> there, back;
  for (std::size_t r = 0; r <= how.rounds; ++r) {
    const double f = bench::seconds_of(kit.stream(), 4, [&] { kit.attention(forward); });
    const double b = bench::seconds_of(kit.stream(), 4, [&] { kit.attention(backward); });
    if (r > 0) there.push_back(f), back.push_back(b);
  }
  const double operations = 2.0 * static_cast<double>(sequences * sizes.heads * sizes.head_size) *
                            static_cast<double>(length) * static_cast<double>(length);  // half of the scores
  std::printf(
      "attention of %s, %zu x %zu heads of %zu (%zu of keys), %zu long: forward %.2f ms, %.1f TFLOP/s; backward %.2f "
      "ms, %.1f TFLOP/s\n",
      type, sequences, sizes.heads, sizes.head_size, sizes.kv_heads, length, 1e3 * bench::median(there),
      1e-12 * operations / bench::median(there), 1e3 * bench::median(back), 2.5e-12 * operations / bench::median(back));
}

}  // namespace

int main(int argc, char** argv) try {
  effort how;
  if (argc == 2 && std::strcmp(argv[1], "--quick") == 0) {
    how = {3, 64 * mib};
  } else if (argc > 1) {
    std::fprintf(stderr, "device: unknown flag %s; there is --quick\n", argv[1]);
    return 2;
  }
  api_type api;
  const device_type gpu(api);
  cudaDeviceProp card{};
  if (cudaGetDeviceProperties(&card, 0) == cudaSuccess)
    std::printf("%s, compute capability %d.%d, %.0f GiB\n", card.name, card.major, card.minor,
                static_cast<double>(card.totalGlobalMem) / (1024.0 * mib));
  kit_type kit(gpu);
  const memory_type workspace(gpu, kit.workspace_bytes());
  kit.use_workspace({workspace.data(), workspace.size_bytes()});
  bench::figures out;
  memory(gpu, kit, how, out);
  optimizer(gpu, kit, how, out);
  pinned(gpu, how, out);
  products<float>("fp32", gpu, kit, how, out);
  products<belay::bf16>("bf16", gpu, kit, how, out);
  attention<float>("fp32", gpu, kit, how);
  attention<belay::bf16>("bf16", gpu, kit, how);
  launches(kit, workspace, how);
  return out.all_reached() || how.rounds < effort{}.rounds ? 0 : 1;
} catch (const std::exception& problem) {
  std::fprintf(stderr, "device: %s\n", problem.what());
  return 4;
}
