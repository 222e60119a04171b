// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Every kernel of the kernel room, handed unchanged to Belay's launcher. nvcc compiles and
// links it for the device; where there is a device, its results are compared with the host's loop.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <vector>

#include "belay/backend/cuda/stream.hpp"
#include "belay/kernel.hpp"
#include "belay/parallel/experts.hpp"
#include "belay/parallel/routing.hpp"
#include "support/card.hpp"
#include "support/warp.cuh"

namespace {

namespace kernel = belay::kernel;

constexpr std::size_t rows = 67;
constexpr std::size_t width = 64;
constexpr std::size_t count = rows * width;  // more than a chunk of a sum

// The arrays that the kernels read and write; one set on the host, one that both sides can reach.
struct arrays {
  float* a;
  float* b;
  float* c;
  float* out;
  float* row;
  double* sums;
  std::int32_t* index;
  belay::fp8_e4m3* narrow;
  char* table;  // of ranges and scalars; not compared, since addresses differ
};

constexpr std::size_t bytes_of_one = count * sizeof(double);
constexpr std::size_t array_count = 9;

arrays lay_out(char* memory) {
  const auto at = [&](std::size_t i) { return static_cast<void*>(memory + i * bytes_of_one); };
  return {static_cast<float*>(at(0)),        static_cast<float*>(at(1)),           static_cast<float*>(at(2)),
          static_cast<float*>(at(3)),        static_cast<float*>(at(4)),           static_cast<double*>(at(5)),
          static_cast<std::int32_t*>(at(6)), static_cast<belay::fp8_e4m3*>(at(7)), static_cast<char*>(at(8))};
}

void fill(const arrays& x) {
  for (std::size_t i = 0; i < count; ++i) {
    const float t = static_cast<float>(i % 101) / 101.0f;
    x.a[i] = t - 0.5f;
    x.b[i] = 0.25f + t;
    x.c[i] = 0.125f * t;
    x.out[i] = 0;
    x.row[i] = 0.5f + t;
    x.sums[i] = 0;
    x.index[i] = static_cast<std::int32_t>((i * 5) % rows);
    x.narrow[i] = belay::fp8_e4m3(t);
  }
}

class comparison {
 public:
  comparison() : host_memory_(array_count * bytes_of_one), host_(lay_out(host_memory_.data())) {
    int devices = 0;
    if (cudaGetDeviceCount(&devices) == cudaSuccess && devices > 0) {
      void* shared = nullptr;
      if (cudaMallocManaged(&shared, array_count * bytes_of_one) == cudaSuccess) {
        device_ = lay_out(static_cast<char*>(shared));
        has_device_ = true;
      }
    }
  }

  /// Runs what `make` returns for the arrays it is given, here and there, and compares every array.
  template <class Make>
  void operator()(const char* name, std::size_t indices, Make make) {
    fill(host_);
    const auto on_host = make(host_);
    kernel::for_each_row(indices, on_host);
    if (!has_device_) return;
    fill(device_);
    if (!run_on_device(make(device_), indices)) {
      std::printf("%s: %s\n", name, cudaGetErrorString(cudaGetLastError()));
      failed_ = true;
      return;
    }
    bool same = true;
    for (std::size_t i = 0; i < count; ++i) {
      same = same && close(host_.a[i], device_.a[i]) && close(host_.b[i], device_.b[i]) &&
             close(host_.c[i], device_.c[i]) && close(host_.out[i], device_.out[i]) &&
             close(host_.row[i], device_.row[i]) && close(host_.sums[i], device_.sums[i]) &&
             close(static_cast<float>(host_.narrow[i]), static_cast<float>(device_.narrow[i]));
    }
    if (!same) std::printf("%s: the device's result is not the host's\n", name);
    failed_ = failed_ || !same;
  }

  [[nodiscard]] int result() const {
    std::printf("%s\n", has_device_ ? "run on host and device" : "no device: compiled, linked, run on the host");
    if (failed_) return 1;
    return has_device_ ? 0 : test::code_without_card();
  }

 private:
  template <class Kernel>
  static bool run_on_device(Kernel what, std::size_t indices) {
    return test::launch(indices, what) == cudaSuccess && cudaDeviceSynchronize() == cudaSuccess;
  }

  // The device fuses multiplications and additions; the rest is the same arithmetic.
  static bool close(double x, double y) { return std::abs(x - y) <= 1e-5 * (1 + std::abs(x)); }

  std::vector<char> host_memory_;
  arrays host_;
  arrays device_{};
  bool has_device_ = false;
  bool failed_ = false;
};

// Two ranges with a gap, of which the second is not aligned for packs; the scalars of an update, and a factor.
struct ranges_there {
  kernel::chunked_ranges ranges;
  const kernel::adamw_scalars<float>* scalars;
  const float* factor;
};
constexpr std::size_t first_range = 600, second_range = 501;
ranges_there ranges_in(const arrays& x) {
  auto* const table = reinterpret_cast<kernel::chunked_range*>(x.table);
  table[0] = {x.a, x.c, first_range, 0, 0, 1};
  table[1] = {x.a + first_range + 3, x.c + first_range + 3, second_range, 1, first_range, 0};
  auto* const scalars = reinterpret_cast<kernel::adamw_scalars<float>*>(table + 2);
  *scalars = kernel::adamw_at_step<float>({}, 3);
  auto* const factor = reinterpret_cast<float*>(scalars + 1);
  *factor = 0.5f;
  return {{table, 2}, scalars, factor};
}

// A token a row, whose place is an index.
belay::placed_rows<float> rows_at(const arrays& x, float* slot) { return {slot, 0, x.index, x.index, 1, 1, width}; }

// Rows of which some have one index, in the order of their indices.
constexpr std::size_t narrow_width = 16, narrow_rows = count / narrow_width;
const std::int32_t* rows_by_index(const arrays& x) {
  auto* const order = reinterpret_cast<std::int32_t*>(x.table);
  std::iota(order, order + narrow_rows, 0);
  std::stable_sort(order, order + narrow_rows, [&](auto a, auto b) { return x.index[a] < x.index[b]; });
  return order;
}

}  // namespace

int main() {
  comparison compare;
  compare("fill", count, [](const arrays& x) { return kernel::fill<float>{x.out, 3.0f}; });
  compare("copy", count, [](const arrays& x) { return kernel::copy<float>{x.a, x.out}; });
  compare("narrowing copy", count, [](const arrays& x) { return kernel::copy<float, belay::fp8_e4m3>{x.a, x.narrow}; });
  compare("add", count, [](const arrays& x) { return kernel::add<float>{x.a, x.b, x.out}; });
  compare("multiply", count, [](const arrays& x) { return kernel::multiply<float>{x.a, x.b, x.out}; });
  compare("axpy", count, [](const arrays& x) { return kernel::axpy<float>{0.5f, x.a, x.out}; });
  compare("scale", count, [](const arrays& x) { return kernel::scale<float>{0.5f, x.b}; });
  compare("add_scaled", count, [](const arrays& x) { return kernel::add_scaled<float>{x.a, 0.5f, x.b, x.out}; });
  compare("silu_gate", count, [](const arrays& x) { return kernel::silu_gate<float>{x.a, x.b, x.out}; });
  compare("silu_gate_backward", count, [](const arrays& x) {
    return kernel::silu_gate_backward<float>{x.a, x.b, x.c, x.out, x.row};
  });
  compare("silu_gate_again_backward", count, [](const arrays& x) {
    return kernel::silu_gate_again_backward<float>{{x.a, x.b, x.c, x.a, x.b}, x.c};
  });
  compare("adamw", count, [](const arrays& x) {
    return kernel::adamw<float>{x.a, x.c, x.b, x.row, kernel::adamw_at_step<float>({}, 3)};
  });
  compare("adamw_of_ranges", 2, [](const arrays& x) {
    const ranges_there all = ranges_in(x);
    return kernel::adamw_of_ranges<float, float>{
        all.ranges, x.b, first_range + second_range, {all.scalars}, {all.scalars}};
  });
  compare("scaled_squares_of_ranges", 1, [](const arrays& x) {
    const ranges_there all = ranges_in(x);
    return kernel::scaled_squares_of_ranges<float>{all.ranges, 2, all.factor, x.sums};
  });
  compare("group_sums", kernel::row_group_count(rows) * kernel::column_block_count(width), [](const arrays& x) {
    using term = kernel::rms_norm_weight_term<float>;
    return kernel::group_sums<term, float>{{{x.a, x.row, x.c, width}, x.b, rows, width}, x.out, 0, width};
  });
  compare("quantize_rows", rows, [](const arrays& x) {
    return kernel::quantize_rows<belay::fp8_block<128>, float>{x.a, x.narrow, x.row, width};
  });
  compare("dequantize_rows", rows, [](const arrays& x) {
    return kernel::dequantize_rows<belay::fp8_block<128>, float>{x.narrow, x.row, x.out, width};
  });
  compare("quantize_rows by bytes", 1, [](const arrays& x) {
    return kernel::quantize_rows<belay::mxfp8, float>{x.a, x.narrow, reinterpret_cast<belay::e8m0*>(x.index), count};
  });
  compare("sums of squares", 1, [](const arrays& x) { return kernel::chunk_sums_of_squares<float>{x.a, 64, x.sums}; });
  compare("gather_rows", rows, [](const arrays& x) {
    return kernel::gather_rows<float, std::int32_t>{x.a, x.index, x.out, width};
  });
  compare("pushed_rows", rows, [](const arrays& x) { return belay::pushed_rows<float>{rows_at(x, x.out), x.a}; });
  compare("pulled_rows", rows, [](const arrays& x) {
    return belay::pulled_rows<float, float>{rows_at(x, x.a), x.row, x.out};
  });
  compare("returned_rows", rows, [](const arrays& x) {
    return belay::returned_rows<float>{rows_at(x, x.a), x.row, x.b, x.c};
  });
  compare("accumulate_rows", kernel::column_block_count(width), [](const arrays& x) {
    return kernel::accumulate_rows<float, std::int32_t>{x.a, x.index, rows, x.out, width};
  });
  compare("accumulate_sorted_rows", narrow_rows, [](const arrays& x) {
    return kernel::accumulate_sorted_rows<float, std::int32_t>{{x.a, x.index, narrow_rows, x.out, narrow_width, rows},
                                                               rows_by_index(x)};
  });
  compare("route_row", rows,
          [](const arrays& x) { return belay::route_row<float>{x.a, x.index, x.row, x.out, width, 4, 0}; });
  compare("route_gradient_row", rows, [](const arrays& x) {
    auto* const counts = reinterpret_cast<std::int64_t*>(x.table);
    std::fill_n(counts, width, 3);
    return belay::route_gradient_row<float>{x.index, x.row, x.b, counts, x.c, x.out, width, 4, 0.5f};
  });
  compare("swiglu_rows", rows, [](const arrays& x) {
    return kernel::swiglu_rows<float, std::int32_t>{x.a, x.out, x.index + 1, width / 2};
  });
  compare("swiglu_rows_again_backward", rows, [](const arrays& x) {
    return kernel::swiglu_rows_again_backward<float, std::int32_t>{x.a, x.c, x.index + 1, width / 2};
  });
  compare("causal_softmax_rows", rows, [](const arrays& x) {
    return kernel::causal_softmax_rows<float>{x.a, x.out, width};
  });
  compare("causal_softmax_rows of a block", width / 2, [](const arrays& x) {
    return kernel::causal_softmax_rows<float>{x.a, x.out, width, 1.0f, width / 2, x.row};
  });
  compare("attention_rows_backward", width / 2, [](const arrays& x) {
    return kernel::attention_rows_backward<float>{x.a, x.out, x.row, x.b, x.c, 8, 8, 8, width, width / 2};
  });
  compare("cross_entropy_rows", rows,
          [](const arrays& x) { return kernel::cross_entropy_rows<float>{x.a, x.index, x.sums, x.out, width, 0.5}; });
  compare("noted_squared_error", 1, [](const arrays& x) {
    return belay::cuda::single_run<kernel::noted_squared_error<float>>{{x.a, x.b, x.out, count, 0, {}}};
  });
  compare("cross_entropy_rows of a long row", 1,
          [](const arrays& x) { return kernel::cross_entropy_rows<float>{x.a, x.index, x.sums, x.out, count, 0.5}; });
  compare("noted_cross_entropy", 1, [](const arrays& x) {
    return belay::cuda::single_run<kernel::noted_cross_entropy<float>>{
        {{x.a, x.index, nullptr, x.out, width, 0.5}, rows}};
  });
  compare("losses_of_rows", 1, [](const arrays& x) {
    return kernel::losses_of_rows<kernel::noted_squared_error<float>>{{x.a, x.b, x.out, count, 0, {}}, x.sums, 0};
  });
  compare("rms_norm_rows", rows,
          [](const arrays& x) { return kernel::rms_norm_rows<float>{x.a, x.b, x.out, x.row, width, 1e-5f}; });
  compare("rms_norm_rows of a long row", 1,
          [](const arrays& x) { return kernel::rms_norm_rows<float>{x.a, x.b, x.out, x.row, count, 1e-5f}; });
  compare("rms_norm_rows_again", rows, [](const arrays& x) {
    return kernel::rms_norm_rows_again<float>{x.a, x.b, x.row, x.out, width};
  });
  compare("column_sums", kernel::column_block_count(width), [](const arrays& x) {
    return kernel::column_sums<kernel::rms_norm_weight_term<float>, float>{
        {x.a, x.row, x.c, width}, x.out, rows, width};
  });
  compare("rms_norm_rows_backward", rows,
          [](const arrays& x) { return kernel::rms_norm_rows_backward<float>{x.a, x.b, x.row, x.c, x.out, width}; });
  compare("rotate_heads", rows,
          [](const arrays& x) { return kernel::rotate_heads<float>{x.a, x.b, x.c, width, rows, 4, width / 4}; });
  compare("rotated_rows", rows, [](const arrays& x) {
    return kernel::rotated_rows<float, float>{x.a, x.out, x.b, x.c, width, rows, 3, width / 4};
  });
  return compare.result();
}
