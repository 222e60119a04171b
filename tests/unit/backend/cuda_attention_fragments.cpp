// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The attention of the CUDA backend by tensor cores, whose lanes are fibers, beside its definition in double: for bf16
// inputs what differs is the rounding of probabilities and of the derivatives of scores before they are multiplied.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "belay/backend/cuda/attention_fragments.hpp"
#include "fakes/cuda/fiber_block.hpp"
#include "fakes/cuda/shuffled_block.hpp"

namespace {

using belay::bf16;

// Counts which kernels are queued. Those of fragments have lanes that meet.
struct kernels_here {
  std::uint64_t seed = 0;
  int fragments = 0;
  int others = 0;

  template <class G>
  bool teams(std::size_t count, const G& g) {
    ++others;
    belay::kernel::for_each_row(count, g);
    return true;
  }
  template <class K>
  bool blocks(const K& k) {
    ++others;
    fakes::for_each_block(k.blocks(), k, seed++);
    return true;
  }
  template <class K>
  requires requires { typename K::unit; }
  bool blocks(const K& k) {
    ++fragments;
    fakes::for_each_block_of_fibers(k.blocks(), k, seed++);
    return true;
  }
};

constexpr float untouched = 7;

// Rows of queries, keys and values in one array, and outputs in rows that are longer than they are; two rows more.
struct attention_sample {
  belay::attention_sizes sizes;
  std::size_t rows;
  std::size_t width;
  std::size_t stride;
  std::size_t query_stride;
  std::vector<bf16> packed;
  std::vector<bf16> context;
  std::vector<float> log_sums;

  attention_sample(const belay::attention_sizes& of, std::size_t sequences)
      : sizes(of),
        rows(sequences * of.length),
        width((of.heads + 2 * of.kv_heads) * of.head_size),
        stride(width + 8),
        query_stride(of.heads * of.head_size + 16),
        packed((rows + 2) * stride, bf16(std::numeric_limits<float>::quiet_NaN())),
        context((rows + 2) * query_stride, bf16(untouched)),
        log_sums((sequences * of.heads * of.length) + 2, untouched) {
    std::mt19937 random(5);
    std::normal_distribution<float> normal;
    for (std::size_t row = 0; row < rows; ++row)
      for (std::size_t i = 0; i < width; ++i) packed[row * stride + i] = bf16(1.5F * normal(random));
  }
  [[nodiscard]] belay::operand<const bf16> part(std::size_t first_head, std::size_t heads) const {
    return {packed.data() + first_head * sizes.head_size, rows, heads * sizes.head_size, stride};
  }
  [[nodiscard]] belay::attention_call<bf16> call() {
    return {sizes,
            part(0, sizes.heads),
            part(sizes.heads, sizes.kv_heads),
            part(sizes.heads + sizes.kv_heads, sizes.kv_heads),
            {context.data(), rows, sizes.heads * sizes.head_size, query_stride},
            log_sums.data()};
  }
};

// One row of one head, by the definition.
struct plain_row {
  std::vector<double> probabilities;
  std::vector<double> context;
  double log_sum = 0;
};
double number_at(const belay::operand<const bf16>& of, std::size_t row, std::size_t column) {
  return static_cast<double>(of.data[row * of.stride + column]);
}
plain_row plainly(const belay::attention_call<bf16>& call, std::size_t begin, std::size_t position, std::size_t head) {
  const belay::attention_sizes& of = call.sizes;
  const std::size_t column = head * of.head_size, shared = head / (of.heads / of.kv_heads) * of.head_size;
  plain_row out;
  out.context.resize(of.head_size);
  double total = 0;
  for (std::size_t key = 0; key <= position; ++key) {
    double score = 0;
    for (std::size_t i = 0; i < of.head_size; ++i)
      score += number_at(call.queries, begin + position, column + i) * number_at(call.keys, begin + key, shared + i);
    out.probabilities.push_back(std::exp(score * of.scale()));
    total += out.probabilities.back();
  }
  out.log_sum = std::log(total);
  for (std::size_t key = 0; key <= position; ++key) {
    out.probabilities[key] /= total;
    for (std::size_t i = 0; i < of.head_size; ++i)
      out.context[i] += out.probabilities[key] * number_at(call.values, begin + key, shared + i);
  }
  return out;
}

// The worst of all rows: the context's error as a vector, of its norm, and the error of the sum's logarithm.
struct forward_error {
  double context = 0;
  double log_sum = 0;
};
forward_error error_of(const belay::attention_call<bf16>& call) {
  const belay::attention_sizes& of = call.sizes;
  forward_error worst;
  for (std::size_t begin = 0; begin < call.queries.rows; begin += of.length)
    for (std::size_t head = 0; head < of.heads; ++head)
      for (std::size_t position = 0; position < of.length; ++position) {
        const plain_row expected = plainly(call, begin, position, head);
        double error = 0, norm = 0;
        for (std::size_t i = 0; i < of.head_size; ++i) {
          const double got = static_cast<double>(
              call.context.data[(begin + position) * call.context.stride + head * of.head_size + i]);
          error += (got - expected.context[i]) * (got - expected.context[i]);
          norm += expected.context[i] * expected.context[i];
        }
        const double got = call.log_sums[(begin / of.length * of.heads + head) * of.length + position];
        const auto larger = [](double x, double y) { return y <= x ? x : std::isnan(y) ? 1e9 : y; };
        worst.context = larger(worst.context, std::sqrt(error / norm));
        worst.log_sum = larger(worst.log_sum, std::abs(got - expected.log_sum));
      }
  return worst;
}

// Whether a row's end and the rows behind are as they were.
template <class T>
bool is_framed(const std::vector<T>& array, std::size_t rows, std::size_t width, std::size_t stride) {
  for (std::size_t i = 0; i < array.size(); ++i)
    if ((i / stride >= rows || i % stride >= width) && static_cast<float>(array[i]) != untouched) return false;
  return true;
}

forward_error forward_error_of(const belay::attention_sizes& sizes, std::size_t sequences, std::uint64_t seed = 0) {
  attention_sample sample(sizes, sequences);
  kernels_here by{seed};
  CHECK(belay::cuda::queue_attention<fakes::tensor_fibers>(by, sample.call()));
  CHECK(by.fragments == 1);
  CHECK(is_framed(sample.context, sample.rows, sizes.heads * sizes.head_size, sample.query_stride));
  CHECK(is_framed(sample.log_sums, 1, sample.log_sums.size() - 2, sample.log_sums.size()));
  return error_of(sample.call());
}

}  // namespace

TEST_CASE("an attention of fragments is its definition: lengths that are no tile's, heads that share keys, sequences") {
  struct trial {
    belay::attention_sizes sizes;
    std::size_t sequences;
  };
  std::uint64_t seed = 0;
  for (const trial& each :
       {trial{{1, 1, 64, 1}, 1}, trial{{2, 1, 64, 15}, 3}, trial{{2, 2, 64, 64}, 1}, trial{{1, 1, 64, 65}, 1},
        trial{{2, 1, 64, 130}, 1}, trial{{1, 1, 128, 65}, 1}, trial{{2, 2, 80, 15}, 1}, trial{{3, 1, 8, 17}, 2}}) {
    CAPTURE(each.sizes.head_size);
    CAPTURE(each.sizes.length);
    const forward_error got = forward_error_of(each.sizes, each.sequences, seed++);
    CHECK(got.context < 0x1p-7);  // two roundings of 2^-9
    CHECK(got.log_sum < 1e-5);
  }
}
