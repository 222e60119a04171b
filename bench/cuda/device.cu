// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// device [--quick] [--json FILE]
//
// What Belay's kernels, copies and products reach on the GPU that is here, beside the GPU's own limits, in one run: a
// copy within the device, a kernel that reads and writes what AdamW does, a large copy of pinned memory, a product
// alone, and the launch of an empty kernel; and what a step that is launched as graphs costs the host. Rounds
// interleave what is compared; each figure is a median. Ends with 1 where one is short of its limit.
#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <string>
#include <vector>

#include "belay/backend/cuda.hpp"
#include "belay/backend/cuda/runtime_api.cuh"
#include "belay/backend/host.hpp"
#include "belay/kernel.hpp"
#include "cuda/attention.cuh"
#include "cuda/bookkeeping.hpp"
#include "cuda/dense_products.cuh"
#include "cuda/experts.cuh"
#include "cuda/figures.hpp"
#include "cuda/rows.cuh"
#include "cuda/shared_collectives.cuh"
#if defined(BELAY_BENCH_CUDNN)
#include "belay/backend/cuda/cudnn_attention.cuh"
#endif

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

// What has no place in the backend: the limits that it is held against.
void expect(cudaError_t got) {
  if (got != cudaSuccess) throw belay::input_error(cudaGetErrorString(got), belay::where::current());
}
// Pinned memory as CUDA itself gives it.
struct cuda_pinned {
  explicit cuda_pinned(std::size_t bytes) { expect(cudaMallocHost(&memory, bytes)); }
  cuda_pinned(const cuda_pinned&) = delete;
  cuda_pinned& operator=(const cuda_pinned&) = delete;
  ~cuda_pinned() { static_cast<void>(cudaFreeHost(memory)); }
  void* memory = nullptr;
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
    std::vector<double> copied, own, kernel, scaled, added;
    const cudaStream_t order = kit.stream().handle().order;
    for (std::size_t r = 0; r <= how.rounds; ++r) {
      const double limit =
          bench::seconds_of(kit.stream(), calls,
                            [&] { expect(cudaMemcpyAsync(y, x, bytes, cudaMemcpyDeviceToDevice, order)); }) /
          static_cast<double>(2 * bytes);
      const double by_copy = limit * static_cast<double>(2 * bytes) /
                             bench::seconds_of(kit.stream(), calls, [&] { kit.stream().copy(y, x, bytes); });
      const auto share = [&](std::size_t moved, const auto& f) {
        return limit * static_cast<double>(moved) / bench::seconds_of(kit.stream(), calls, [&] { kit.each(n, f); });
      };
      const double by_kernel = share(2 * bytes, belay::kernel::copy<float>{x, y});
      const double by_scale = share(2 * bytes, belay::kernel::scale<float>{0.5F, x});
      const double by_axpy = share(3 * bytes, belay::kernel::axpy<float>{0.5F, x, y});
      if (r == 0) continue;  // warm
      copied.push_back(1e-9 / limit), own.push_back(by_copy);
      kernel.push_back(by_kernel), scaled.push_back(by_scale), added.push_back(by_axpy);
    }
    const std::string size = " of " + std::to_string(bytes / mib) + " MiB";
    out.told("copy within the device" + size, bench::median(copied), "GB/s");
    out.at_least("copies of streams" + size + " beside it", bench::median(own), 0.88, 0.92);
    out.at_least("each: copy" + size + " beside it", bench::median(kernel), 0.88, 0.92);
    out.at_least("each: scale" + size + " beside it", bench::median(scaled), 0.88, 0.92);
    out.at_least("each: axpy" + size + " beside it", bench::median(added), 0.88, 0.92);
  }
}

// The launches of a trainer after its backward, over a table of hundreds of ranges in buckets: division with the norm's
// squares, and AdamW; and AdamW of one range. Beside kernels that read and write as much in one piece.
void optimizer(const device_type& gpu, kit_type& kit, const effort& how, bench::figures& out) {
  using belay::kernel::chunked_range, belay::kernel::chunked_ranges, belay::kernel::chunk_count;
  const std::size_t bytes = how.most / 4, n = bytes / sizeof(float), calls = 8;
  const memory_type arrays(gpu, 4 * bytes);
  float *const value = floats(arrays.data()), *const gradient = floats(arrays.data(), bytes),
               *const first = floats(arrays.data(), 2 * bytes), *const second = floats(arrays.data(), 3 * bytes);
  kit.each(4 * n, belay::kernel::fill<float>{value, 0.01F});

  // Matrices and vectors as a transformer has them, in 16 buckets.
  std::vector<chunked_range> rows;
  std::vector<std::size_t> begins;  // of buckets
  std::size_t chunks = 0;
  for (std::size_t done = 0, bucket_end = 0; done < n;) {
    if (done >= bucket_end) begins.push_back(rows.size()), bucket_end += n / 16;
    const std::size_t size = rows.size() % 3 == 0 ? 1024 : n / 384, count = std::min(size, n - done);
    rows.push_back({value + done, gradient + done, count, chunks, done, rows.size() % 3 != 0});
    done += count, chunks += chunk_count(count);
  }
  begins.push_back(rows.size());
  struct numbers {
    belay::kernel::adamw_scalars<float> scalars;
    float scale;
  };
  const numbers some{belay::kernel::adamw_at_step<float>({}, 3), 1.0F};
  const memory_type table(gpu, rows.size() * sizeof rows[0] + sizeof some), squares(gpu, chunks * sizeof(double));
  expect(cudaMemcpy(table.data(), rows.data(), rows.size() * sizeof rows[0], cudaMemcpyHostToDevice));
  auto* const there = reinterpret_cast<const chunked_range*>(table.data());
  auto* const given = reinterpret_cast<const numbers*>(there + rows.size());
  expect(cudaMemcpy(table.data() + rows.size() * sizeof rows[0], &some, sizeof some, cudaMemcpyHostToDevice));
  const auto update = [&] {
    for (std::size_t b = 0; b + 1 < begins.size(); ++b) {
      const chunked_range& last = rows[begins[b + 1] - 1];
      kit.teams(last.first_chunk + chunk_count(last.count) - rows[begins[b]].first_chunk,
                belay::kernel::adamw_of_ranges<float, float>{
                    {there + begins[b], begins[b + 1] - begins[b]}, first, n, {&given->scalars}, {&given->scalars}});
    }
  };
  const belay::kernel::scaled_squares_of_ranges<float> division{
      {there, rows.size()}, chunks, &given->scale, reinterpret_cast<double*>(squares.data())};

  std::vector<double> shares, of_one, divided, nanoseconds;
  for (std::size_t r = 0; r <= how.rounds; ++r) {
    const auto took = [&](const auto& work) { return bench::seconds_of(kit.stream(), calls, work); };
    const double limit = took([&] { kit.each(n, passed_through{value, gradient, first, second}); });
    const double trained = took(update);
    const double alone = took([&] {
      kit.each(n, belay::kernel::adamw<float>{value, gradient, first, second, some.scalars});
    });
    const double scaled = took([&] { kit.each(n, belay::kernel::scale<float>{1.0F, gradient}); });
    const double division_took = took([&] { kit.teams(division.rows_of(chunks), division); });
    if (r == 0) continue;
    shares.push_back(limit / trained), of_one.push_back(limit / alone), divided.push_back(scaled / division_took);
    nanoseconds.push_back(1e9 * trained / static_cast<double>(n));
  }
  const std::string ranges = " of " + std::to_string(rows.size()) + " ranges";
  out.told("AdamW of " + std::to_string(n >> 20U) + " million parameters", bench::median(nanoseconds),
           "ns a parameter");
  out.at_least("AdamW" + ranges + " beside reading and writing as much", bench::median(shares), 0.90);
  out.at_least("AdamW of one range beside it", bench::median(of_one), 0.90);
  out.at_least("division with squares" + ranges + " beside scaling as much", bench::median(divided), 0.85);
}

// Copies of pinned memory in pieces, beside the best large copy: of the same memory, or of CUDA's own.
void pinned(const device_type& gpu, const effort& how, bench::figures& out) {
  const std::size_t all = how.most / 4;
  const memory_type there(gpu, all);
  const belay::cuda::pinned_memory<api_type> here(gpu, all);
  const cuda_pinned of_cuda(all);
  stream_type copies(gpu, belay::stream_kind::copy);
  const cudaStream_t order = copies.handle().order;
  for (const bool up : {true, false}) {
    const auto best_of = [&] {
      return bench::seconds_of(copies, 1, [&] {
        expect(up ? cudaMemcpyAsync(there.data(), of_cuda.memory, all, cudaMemcpyHostToDevice, order)
                  : cudaMemcpyAsync(of_cuda.memory, there.data(), all, cudaMemcpyDeviceToHost, order));
      });
    };
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
        const double best = std::min(took(all), best_of()), pieces = took(piece);
        if (r == 0) continue;
        shares.push_back(best / pieces), speeds.push_back(1e-9 * static_cast<double>(all) / best);
      }
      if (piece == 4 * mib) out.told(std::string("large copy ") + way, bench::median(speeds), "GB/s");
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
    kit.product(belay::product_call<T>{c, left, right});
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
  std::vector<double> slowed, speeds, hidden;
  const auto carry = [&](std::size_t copies) {
    for (std::size_t i = 0; i < copies; ++i) {
      up.copy(there.data(), here.data(), bytes);
      down.copy(here.data() + bytes, there.data() + bytes, bytes);
    }
  };
  const auto since = [](std::chrono::steady_clock::time_point begin) {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  for (std::size_t r = 0; r <= how.rounds; ++r) {
    const double alone = bench::seconds_of(kit.stream(), calls, [&] { one.queue(kit); });
    const double span = alone * static_cast<double>(calls);
    const auto copies = static_cast<std::size_t>(span * 50e9 * 1.2 / static_cast<double>(bytes)) + 1;
    const auto carried = std::chrono::steady_clock::now();
    carry(copies);
    up.synchronize(), down.synchronize();
    const double copied = since(carried);
    const auto both = std::chrono::steady_clock::now();
    carry(copies);
    const double beside = bench::seconds_of(kit.stream(), calls, [&] { one.queue(kit); });
    up.synchronize(), down.synchronize();
    const double together = since(both);
    if (r == 0) continue;
    slowed.push_back(beside / alone), speeds.push_back(1e-12 * one.operations() / alone);
    hidden.push_back(bench::hidden_share(span, copied, together));
  }
  out.told(std::string("product of ") + type + ", " + std::to_string(one.n) + "^3", bench::median(speeds), "TFLOP/s");
  out.told(std::string("of it and copies both ways, hidden of the shorter, ") + type, bench::median(hidden), "");
  out.at_most(std::string("product of ") + type + " beside copies both ways, over alone", bench::median(slowed), 1.02);
}

// Host time of a launch through the kit, and the device's time of an empty kernel.
void launches(kit_type& kit, const memory_type& some, const effort& how, bench::figures& out) {
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
  out.told("a kernel of one index, time of the host", 1e6 * bench::median(queued), "us");
  out.told("the same until it has run", 1e6 * bench::median(run), "us");
}

// Host time of a step whose micro-batches and update are launches of graphs, but for those launches, copies and waits.
void bookkeeping(const effort& how, bench::figures& out) {
  using timed_api = bench::timed_calls<api_type>;
  timed_api api{bench::host_clock{}};
  std::vector<std::int64_t> told;
  const std::size_t warm = 20, steps = warm + 40 * how.rounds;
  belay::launch(belay::cuda::world(api, belay::host::world(1)),
                bench::replayed::body(steps, told, [&api] { return api.own_time(); }));
  std::vector<double> own;
  for (std::size_t i = warm; i < told.size(); ++i) own.push_back(1e-3 * static_cast<double>(told[i]));
  out.at_most("bookkeeping of a step that is launched, time of the host", bench::median(own), 10, "us");
}

#if defined(BELAY_BENCH_CUDNN)
// Attention by cuDNN on the same card, beside the own form.
void attention_by_library(const effort& how, const bench::attention_times& own, bench::figures& out) {
  using library_api = belay::cuda::attends_by<belay::cuda::cudnn_attention, api_type>;
  const std::size_t length = bench::attention_length(how.most == effort{}.most);
  library_api api(bench::attention_extent_of(length));
  const belay::cuda::device<library_api> gpu(api);
  belay::cuda::kit<library_api> kit(gpu);
  const belay::cuda::device_memory<library_api> workspace(gpu, kit.workspace_bytes());
  kit.use_workspace({workspace.data(), workspace.size_bytes()});
  const auto by_library = bench::measure_attention<belay::bf16>("bf16 by cuDNN", gpu, kit, how.rounds, length, out);
  out.told("attention of bf16, the own form's speed beside cuDNN's: forward", by_library.forward / own.forward, "");
  out.told("attention of bf16, the own form's speed beside cuDNN's: backward", by_library.backward / own.backward, "");
}
#endif

}  // namespace

int main(int argc, char** argv) try {
  effort how;
  const char* json = nullptr;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--quick") == 0) {
      how = {3, 64 * mib};
    } else if (std::strcmp(argv[i], "--json") == 0 && i + 1 < argc) {
      json = argv[++i];
    } else {
      std::fprintf(stderr, "device: unknown flag %s; there are --quick and --json FILE\n", argv[i]);
      return 2;
    }
  }
  api_type api;
  const device_type gpu(api);
  cudaDeviceProp card{};
  std::string about = "unknown";
  if (cudaGetDeviceProperties(&card, 0) == cudaSuccess) {
    about = std::string(card.name) + ", compute capability " + std::to_string(card.major) + '.' +
            std::to_string(card.minor) + ", " + std::to_string(card.totalGlobalMem / (1024 * mib)) + " GiB";
    std::printf("%s\n", about.c_str());
  }
  bench::figures out;
  {
    kit_type kit(gpu);
    const memory_type workspace(gpu, kit.workspace_bytes());
    kit.use_workspace({workspace.data(), workspace.size_bytes()});
    memory(gpu, kit, how, out);
    optimizer(gpu, kit, how, out);
    bench::measure_rows(gpu, kit, how.rounds, how.most / 4, out);
    pinned(gpu, how, out);
    products<float>("fp32", gpu, kit, how, out);
    products<belay::bf16>("bf16", gpu, kit, how, out);
    bench::measure_dense_products(gpu, kit, how.rounds, how.most == effort{}.most ? 4096 : 512, out);
    bench::measure_experts(gpu, kit, how.rounds, how.most == effort{}.most ? 8192 : 512, out);
    const std::size_t length = bench::attention_length(how.most == effort{}.most);
    bench::measure_attention<float>("fp32", gpu, kit, how.rounds, length, out);
    [[maybe_unused]] const bench::attention_times own =
        bench::measure_attention<belay::bf16>("bf16", gpu, kit, how.rounds, length, out);
#if defined(BELAY_BENCH_CUDNN)
    attention_by_library(how, own, out);
#endif
    launches(kit, workspace, how, out);
  }
  bookkeeping(how, out);
  bench::measure_shared_collectives(how.rounds, how.most / 16, out);
  if (json != nullptr) {
    std::FILE* const file = std::fopen(json, "w");
    const bool whole = file != nullptr && std::fputs(out.json(about).c_str(), file) >= 0;
    if (file == nullptr || std::fclose(file) != 0 || !whole) {
      std::fprintf(stderr, "device: --json %s: cannot be written\n", json);
      return 1;
    }
  }
  return out.all_reached() || how.rounds < effort{}.rounds ? 0 : 1;
} catch (const std::exception& problem) {
  std::fprintf(stderr, "device: %s\n", problem.what());
  return 4;
}
