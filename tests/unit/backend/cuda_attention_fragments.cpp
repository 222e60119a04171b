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
#include <set>
#include <vector>

#include "belay/backend/cuda/attention_fragments.hpp"
#include "fakes/cuda/fiber_block.hpp"

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
    fakes::for_each_block(k.blocks(), k, seed++);
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

  attention_sample(const belay::attention_sizes& of, std::size_t sequences, std::size_t padding)
      : sizes(of),
        rows(sequences * of.length),
        width((of.heads + 2 * of.kv_heads) * of.head_size),
        stride(width + padding),
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

// The gradients of queries, keys and values, in rows like those of the sample.
struct gradients {
  std::vector<double> of[3];
};
gradients plain_gradients(const attention_sample& sample, const std::vector<float>& dcontext) {
  attention_sample copy = sample;
  const belay::attention_call<bf16> call = copy.call();
  const belay::attention_sizes& of = call.sizes;
  gradients out;
  for (std::size_t i = 0; i < 3; ++i) out.of[i].resize(sample.rows * (i == 0 ? of.heads : of.kv_heads) * of.head_size);
  const auto at = [&](std::size_t which, std::size_t row, std::size_t column) -> double& {
    return out.of[which][row * (which == 0 ? of.heads : of.kv_heads) * of.head_size + column];
  };
  for (std::size_t begin = 0; begin < sample.rows; begin += of.length)
    for (std::size_t head = 0; head < of.heads; ++head)
      for (std::size_t position = 0; position < of.length; ++position) {
        const std::size_t row = begin + position, column = head * of.head_size;
        const std::size_t shared = head / (of.heads / of.kv_heads) * of.head_size;
        const plain_row forward = plainly(call, begin, position, head);
        std::vector<double> dp(position + 1);
        double mean = 0;
        for (std::size_t key = 0; key <= position; ++key) {
          for (std::size_t i = 0; i < of.head_size; ++i) {
            const double dout = dcontext[row * sample.query_stride + column + i];
            dp[key] += dout * number_at(call.values, begin + key, shared + i);
            at(2, begin + key, shared + i) += forward.probabilities[key] * dout;
          }
          mean += forward.probabilities[key] * dp[key];
        }
        for (std::size_t key = 0; key <= position; ++key)
          for (std::size_t i = 0; i < of.head_size; ++i) {
            const double ds = forward.probabilities[key] * (dp[key] - mean) * of.scale();
            at(0, row, column + i) += ds * number_at(call.keys, begin + key, shared + i);
            at(1, begin + key, shared + i) += ds * number_at(call.queries, row, column + i);
          }
      }
  return out;
}

// What a forward and a backward write, framed by what they leave.
struct attention_run {
  attention_sample sample;
  std::vector<float> dcontext;
  std::vector<float> dpacked;
  kernels_here by;

  attention_run(const belay::attention_sizes& sizes, std::size_t sequences, std::uint64_t seed = 0,
                std::size_t padding = 8)
      : sample(sizes, sequences, padding),
        dcontext(sample.context.size(), std::numeric_limits<float>::quiet_NaN()),
        dpacked((sample.rows + 2) * sample.stride, untouched),
        by{seed} {
    std::mt19937 random(6);
    std::normal_distribution<float> normal;
    const belay::attention_call<bf16> call = sample.call();
    for (std::size_t row = 0; row < sample.rows; ++row)
      for (std::size_t i = 0; i < call.context.columns; ++i) dcontext[row * sample.query_stride + i] = normal(random);
    CHECK(belay::cuda::queue_attention<fakes::tensor_fibers>(by, call));
    const belay::attention_gradient_call<bf16> gradient{
        sizes,
        call.queries,
        call.keys,
        call.values,
        call.context,
        call.log_sums,
        {dcontext.data(), sample.rows, call.context.columns, sample.query_stride},
        gradient_of(0),
        gradient_of(1),
        gradient_of(2)};
    CHECK(belay::cuda::queue_attention<fakes::tensor_fibers>(by, gradient));
    CHECK(is_framed(sample.context, sample.rows, call.context.columns, sample.query_stride));
    CHECK(is_framed(sample.log_sums, 1, sample.log_sums.size() - 2, sample.log_sums.size()));
    CHECK(is_framed(dpacked, sample.rows, sample.width, sample.stride));
  }
  // Of queries, keys and values.
  [[nodiscard]] belay::operand<float> gradient_of(std::size_t which) {
    const belay::attention_sizes& of = sample.sizes;
    const std::size_t first = which == 0 ? 0 : of.heads + (which - 1) * of.kv_heads;
    return {dpacked.data() + first * of.head_size, sample.rows, (which == 0 ? of.heads : of.kv_heads) * of.head_size,
            sample.stride};
  }
  // Their errors as vectors, of their norms; of those of one token, which cancel, of a hundredth.
  [[nodiscard]] std::vector<double> gradient_errors() {
    const gradients expected = plain_gradients(sample, dcontext);
    std::vector<double> out;
    for (std::size_t which = 0; which < 3; ++which) {
      const belay::operand<float> got = gradient_of(which);
      double error = 0, norm = 1e-4;
      for (std::size_t i = 0; i < expected.of[which].size(); ++i) {
        const double x = expected.of[which][i];
        const double difference = got.data[i / got.columns * got.stride + i % got.columns] - x;
        error += std::isnan(difference) ? 1e9 : difference * difference;
        norm += x * x;
      }
      out.push_back(std::sqrt(error / norm));
    }
    return out;
  }
};

constexpr double rounding = 0x1p-7;

void check_beside_definition(const belay::attention_sizes& sizes, std::size_t sequences, std::uint64_t seed) {
  CAPTURE(sizes.heads);
  CAPTURE(sizes.head_size);
  CAPTURE(sizes.length);
  attention_run got(sizes, sequences, seed);
  CHECK(got.by.fragments == 4);
  CHECK(got.by.others == 0);
  const forward_error forward = error_of(got.sample.call());
  CHECK(forward.context < rounding);
  CHECK(forward.log_sum < 1e-5);
  for (const double error : got.gradient_errors()) CHECK(error < rounding);
}

}  // namespace

TEST_CASE("an attention of fragments and its gradients are their definition, at lengths that are no tile's") {
  check_beside_definition({1, 1, 64, 1}, 1, 0);
  check_beside_definition({2, 2, 64, 15}, 3, 1);
  check_beside_definition({2, 1, 64, 64}, 1, 2);
  check_beside_definition({1, 1, 64, 65}, 1, 3);
  check_beside_definition({2, 1, 64, 130}, 1, 4);
}

TEST_CASE("an attention of fragments has heads of up to 128 columns") {
  check_beside_definition({1, 1, 128, 65}, 1, 5);
  check_beside_definition({2, 2, 80, 15}, 2, 6);
  check_beside_definition({3, 1, 8, 17}, 2, 7);
}

TEST_CASE("an attention of fragments has the same bits in any order of blocks and lanes") {
  attention_run one({2, 1, 64, 33}, 2, 8), other({2, 1, 64, 33}, 2, 9);
  CHECK(one.sample.log_sums == other.sample.log_sums);
  CHECK(one.sample.context == other.sample.context);
  CHECK(one.dpacked == other.dpacked);
}

TEST_CASE("the rows of a tile that a matrix is loaded from lie in different banks") {
  const auto check = [](const auto& tile, unsigned steps) {
    for (unsigned step = 0; step < steps; ++step)
      for (unsigned matrix = 0; matrix < 32; matrix += 8) {
        std::set<std::uintptr_t> left, right;
        for (unsigned lane = matrix; lane < matrix + 8; ++lane) {
          left.insert(reinterpret_cast<std::uintptr_t>(tile.left_row(lane, 16, step)) / 16 % 8);
          right.insert(reinterpret_cast<std::uintptr_t>(tile.right_row(lane, 16, step)) / 16 % 8);
        }
        CHECK(left.size() == 8);
        CHECK(right.size() == 8);
      }
  };
  const belay::cuda::fragment_tile<32, 64> narrow{};
  const belay::cuda::fragment_tile<32, 128> wide{};
  check(narrow, 4);
  check(wide, 8);
}

TEST_CASE("what fragments do not take is left to tiles: rows off 16 bytes, other heads, other elements") {
  attention_run off({2, 1, 64, 5}, 1, 0, 4);
  CHECK(off.by.fragments == 0);
  CHECK(error_of(off.sample.call()).context < rounding);
  for (const double error : off.gradient_errors()) CHECK(error < rounding);
  CHECK(attention_run({1, 1, 20, 3}, 1).by.fragments == 0);
  CHECK(attention_run({1, 1, 136, 3}, 1).by.fragments == 0);
  kernels_here by;
  CHECK(belay::cuda::queue_attention<fakes::tensor_fibers>(
      by, belay::attention_call<float>{{1, 1, 64, 1}, {}, {}, {}, {}}));
  CHECK(by.fragments == 0);
  CHECK(by.others == 1);
}
