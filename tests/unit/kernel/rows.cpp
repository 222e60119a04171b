// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "belay/kernel/rows.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "belay/core/dtype.hpp"

namespace {

using namespace belay::kernel;

template <class T>
std::vector<T> noise(std::size_t count, unsigned seed) {
  std::mt19937 engine(seed);
  std::vector<T> values(count);
  for (T& value : values) value = static_cast<T>(static_cast<double>(engine() % 20001) / 10000 - 1);
  return values;
}

// Of rows of softmax(scale x), whose values are `p`: gradients become those of x, in place.
void derive(const std::vector<double>& p, std::vector<double>& gradient, std::size_t length, double scale) {
  for (std::size_t first = 0; first < p.size(); first += length) {
    double mean = 0;
    for (std::size_t j = first; j < first + length; ++j) mean += p[j] * gradient[j];
    for (std::size_t j = 0; j < length; ++j)
      softmax_derivative<double>{p.data() + first, gradient.data() + first, gradient.data() + first, mean, scale}(j);
  }
}

// The derivative of sum(dout * f(x)) by every x, by central differences.
template <class F>
std::vector<double> differences(std::vector<double> x, const std::vector<double>& dout, F f) {
  std::vector<double> result(x.size());
  const auto objective = [&] {
    const std::vector<double> y = f(x);
    double total = 0;
    for (std::size_t i = 0; i < y.size(); ++i) total += dout[i] * y[i];
    return total;
  };
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double kept = x[i];
    x[i] = kept + 1e-5;
    const double above = objective();
    x[i] = kept - 1e-5;
    result[i] = (above - objective()) / 2e-5;
    x[i] = kept;
  }
  return result;
}

void check_near(const std::vector<double>& got, const std::vector<double>& want, double tolerance) {
  REQUIRE(got.size() == want.size());
  for (std::size_t i = 0; i < got.size(); ++i) CHECK(std::abs(got[i] - want[i]) < tolerance);
}

}  // namespace

TEST_CASE("rows come by their index, each as often as asked, and are zeros where there is none") {
  const std::vector<double> table = {1, 2, 10, 20, 100, 200};
  const std::vector<std::int32_t> index = {2, 0, 3};
  std::vector<float> out(12, 7);
  for_each_row(6, gather_rows<double, std::int32_t, float>{table.data(), index.data(), out.data(), 2, 2, 3});
  CHECK(out == std::vector<float>{100, 200, 100, 200, 1, 2, 1, 2, 0, 0, 0, 0});
}

TEST_CASE("rows with the same index add up in order") {
  const std::vector<double> in = {1, 2, 10, 20, 100, 200};
  const std::vector<std::int32_t> index = {1, 0, 1};
  std::vector<double> table = {0.5, 0.25, 0, 3};
  for_each_row(column_block_count(2),
               accumulate_rows<double, std::int32_t>{in.data(), index.data(), 3, table.data(), 2});
  CHECK(table[0] == 10.5);
  CHECK(table[1] == 20.25);
  CHECK(table[2] == 101);
  CHECK(table[3] == 205);
}

TEST_CASE_TEMPLATE("a softmax row is positive, sums to one and survives large inputs", T, float, double) {
  for (const std::size_t width : {1u, 2u, 31u, 128u}) {
    auto x = noise<T>(width, 5);
    for (T& value : x) value = value * T(50) + T(10000);
    std::vector<T> p(width);
    T log_sum = 0;
    for_each_row(1, causal_softmax_rows<T>{x.data(), p.data(), width, T(0.5), width - 1, &log_sum});
    double total = 0, exponentials = 0;
    const double largest = static_cast<double>(*std::max_element(x.begin(), x.end()));
    for (const T value : x) exponentials += std::exp(0.5 * (static_cast<double>(value) - largest));
    for (std::size_t j = 0; j < width; ++j) {
      total += static_cast<double>(p[j]);
      CHECK(std::abs(static_cast<double>(p[j]) - std::exp(0.5 * (static_cast<double>(x[j]) - largest)) / exponentials) <
            1e-6);
    }
    CHECK(total == doctest::Approx(1).epsilon(1e-6));
    CHECK(static_cast<double>(log_sum) == doctest::Approx(0.5 * largest + std::log(exponentials)).epsilon(1e-6));
    x[width / 2] = std::numeric_limits<T>::quiet_NaN();
    for_each_row(1, causal_softmax_rows<T>{x.data(), p.data(), width, T(0.5), width - 1});
    for (const T value : p) CHECK(std::isnan(value));
  }
}

TEST_CASE("the causal softmax ignores later keys, whatever they hold, and its derivative agrees with differences") {
  const std::size_t length = 7, rows = 14;
  auto scores = noise<double>(rows * length, 6);
  const auto forward = [&](std::vector<double> x) {
    for (std::size_t r = 0; r < rows; ++r) {
      for (std::size_t j = r % length + 1; j < length; ++j) x[r * length + j] = std::nan("");
    }
    for_each_row(rows, causal_softmax_rows<double>{x.data(), x.data(), length, 0.3});
    return x;
  };
  const auto p = forward(scores);
  for (std::size_t r = 0; r < rows; ++r) {
    double total = 0;
    for (std::size_t j = 0; j < length; ++j) total += p[r * length + j];
    CHECK(total == doctest::Approx(1));
    for (std::size_t j = r % length + 1; j < length; ++j) CHECK(p[r * length + j] == 0);
  }
  const auto dp = noise<double>(rows * length, 7);
  auto ds = dp;
  derive(p, ds, length, 0.3);
  check_near(ds, differences(scores, dp, forward), 1e-8);
}

TEST_CASE("a block of queries has the probabilities of its rows in the whole, and their logarithms of sums") {
  const std::size_t length = 7, first = 4, rows = 2, seen = first + rows;
  const auto whole = noise<double>(length * length, 13);
  auto p = whole;
  for_each_row(length, causal_softmax_rows<double>{p.data(), p.data(), length});
  std::vector<double> block(rows * seen), log_sums(rows, -1);
  for (std::size_t r = 0; r < rows; ++r)
    std::copy_n(whole.data() + (first + r) * length, seen, block.data() + r * seen);
  for_each_row(rows, causal_softmax_rows<double>{block.data(), block.data(), seen, 1, first, log_sums.data()});
  for (std::size_t r = 0; r < rows; ++r) {
    double sum = 0;
    for (std::size_t j = 0; j <= first + r; ++j) sum += std::exp(whole[(first + r) * length + j]);
    CHECK(log_sums[r] == doctest::Approx(std::log(sum)));
    for (std::size_t j = 0; j < seen; ++j) CHECK(block[r * seen + j] == p[(first + r) * length + j]);
  }
}

TEST_CASE("an attention's backward makes the probabilities again, and agrees with that of the softmax") {
  const std::size_t length = 6, head = 3, stride = 5;
  const auto scores = noise<double>(length * length, 14), values = noise<double>(length * head, 15);
  auto p = scores;
  std::vector<double> log_sums(length);
  for_each_row(length, causal_softmax_rows<double>{p.data(), p.data(), length, 1, 0, log_sums.data()});
  std::vector<double> out(length * stride), dp(length * length);
  const auto dout = noise<double>(length * stride, 16);
  for (std::size_t r = 0; r < length; ++r) {
    for (std::size_t j = 0; j < length; ++j) {
      for (std::size_t c = 0; c < head; ++c) {
        out[r * stride + c] += p[r * length + j] * values[j * head + c];
        dp[r * length + j] += dout[r * stride + c] * values[j * head + c];
      }
    }
  }
  std::vector<double> ds = dp;
  derive(p, ds, length, 1);
  auto again = scores, from_dp = dp;
  for_each_row(length, attention_rows_backward<double>{again.data(), from_dp.data(), log_sums.data(), out.data(),
                                                       dout.data(), stride, stride, head, length, 0});
  check_near(again, p, 1e-14);
  check_near(from_dp, ds, 1e-14);
}

TEST_CASE("the cross-entropy is minus the logarithm of the target's probability; ignored targets cost nothing") {
  const std::size_t rows = 3;
  for (const std::size_t width : {1u, 19u, 64u}) {
    const auto logits = noise<double>(rows * width, 17);
    const std::vector<std::int32_t> targets = {static_cast<std::int32_t>(width - 1), ignored_target, 0};
    std::vector<double> losses(rows, 7), alone(rows, 7), gradient(rows * width, 7);
    for_each_row(rows, cross_entropy_rows<double>{logits.data(), targets.data(), alone.data(), nullptr, width});
    for_each_row(rows,
                 cross_entropy_rows<double>{logits.data(), targets.data(), losses.data(), gradient.data(), width, 0.5});
    CHECK(alone == losses);
    CHECK(losses[1] == 0);
    for (const std::size_t r : {0u, 2u}) {
      double sum = 0;
      for (std::size_t j = 0; j < width; ++j) sum += std::exp(logits[r * width + j]);
      CHECK(losses[r] ==
            doctest::Approx(std::log(sum) - logits[r * width + static_cast<std::size_t>(targets[r])]).epsilon(1e-13));
    }
    const auto half_of_all = [&](const auto& x) {
      std::vector<double> y(rows);
      for_each_row(rows, cross_entropy_rows<double>{x.data(), targets.data(), y.data(), nullptr, width});
      return y;
    };
    check_near(gradient, differences(logits, {0.5, 0.5, 0.5}, half_of_all), 1e-8);
  }
}

TEST_CASE("cross-entropy of bf16 logits is computed in float, also in place") {
  using belay::bf16;
  constexpr std::size_t rows = 3, width = 67;
  std::vector<bf16> logits(rows * width), gradient(rows * width);
  std::vector<float> wide(rows * width), wide_gradient(rows * width);
  for (std::size_t i = 0; i < logits.size(); ++i) {
    logits[i] = bf16(5 * std::sin(static_cast<float>(i)));
    wide[i] = static_cast<float>(logits[i]);
  }
  const std::vector<std::int32_t> targets = {66, ignored_target, 3};
  std::vector<double> losses(rows, 7), alone(rows, 7), wide_losses(rows, 7);
  for_each_row(rows, cross_entropy_rows<bf16>{logits.data(), targets.data(), alone.data(), nullptr, width});
  for_each_row(rows,
               cross_entropy_rows<bf16>{logits.data(), targets.data(), losses.data(), gradient.data(), width, 0.5});
  for_each_row(rows, cross_entropy_rows<float>{wide.data(), targets.data(), wide_losses.data(), wide_gradient.data(),
                                               width, 0.5});
  CHECK(alone == losses);
  for (std::size_t r = 0; r < rows; ++r) CHECK(losses[r] == doctest::Approx(wide_losses[r]).epsilon(1e-6));
  for (std::size_t i = 0; i < logits.size(); ++i)
    CHECK(static_cast<float>(gradient[i]) == doctest::Approx(wide_gradient[i]).epsilon(0x1p-8));
  for_each_row(rows, cross_entropy_rows<bf16>{logits.data(), targets.data(), losses.data(), logits.data(), width, 0.5});
  for (std::size_t i = 0; i < logits.size(); ++i)
    CHECK(static_cast<float>(logits[i]) == static_cast<float>(gradient[i]));
}

TEST_CASE("a SwiGLU of gate and up side by side is that of two arrays, and leaves rows that are not in use") {
  constexpr std::size_t rows = 3, width = 37;
  const std::int32_t used = 2;
  const auto gate_up = noise<double>(rows * 2 * width, 21), dout = noise<double>(rows * width, 22);
  std::vector<double> y(rows * width, 7), again = dout, gradient = gate_up;
  for_each_row(rows, swiglu_rows<double, std::int32_t>{gate_up.data(), y.data(), &used, width});
  for_each_row(rows, swiglu_rows_again_backward<double, std::int32_t>{gradient.data(), again.data(), &used, width});
  for (std::size_t r = 0; r < rows; ++r) {
    const std::size_t first = 2 * r * width;
    for (std::size_t j = 0; j < width; ++j) {
      double gate = gate_up[first + j], up = gate_up[first + width + j], out = 7, kept = dout[r * width + j];
      if (r < 2) {
        silu_gate<double>{&gate, &up, &out}(0);
        silu_gate_backward<double>{&gate, &up, &kept, &gate, &up}(0);
        kept = out;
      }
      CHECK(y[r * width + j] == doctest::Approx(out));
      CHECK(again[r * width + j] == doctest::Approx(kept));
      CHECK(gradient[first + j] == doctest::Approx(gate));
      CHECK(gradient[first + width + j] == doctest::Approx(up));
    }
  }
}

TEST_CASE("the RMS norm and its backward by input and weight agree with differences") {
  for (const std::size_t width : {1u, 5u, 33u, 130u}) {
    const std::size_t rows = 3;
    const auto x = noise<double>(rows * width, 8), weight = noise<double>(width, 9),
               dout = noise<double>(rows * width, 10);
    std::vector<double> inverse(rows);
    const auto forward = [&](const std::vector<double>& in, const std::vector<double>& w) {
      std::vector<double> out(rows * width);
      for_each_row(rows, rms_norm_rows<double>{in.data(), w.data(), out.data(), inverse.data(), width, 1e-2});
      return out;
    };
    const auto y = forward(x, weight);
    for (std::size_t r = 0; r < rows; ++r) {
      double square = 0;
      for (std::size_t j = 0; j < width; ++j) square += x[r * width + j] * x[r * width + j];
      const double root = std::sqrt(square / static_cast<double>(width) + 1e-2);
      for (std::size_t j = 0; j < width; ++j)
        CHECK(y[r * width + j] == doctest::Approx(weight[j] * x[r * width + j] / root));
    }
    const auto kept = inverse;
    auto over = x;  // the rows as they were, of a norm that overwrites them
    std::vector<double> around_norm(rows * width);
    for_each_row(rows, rms_norm_rows<double>{over.data(), weight.data(), over.data(), inverse.data(), width, 1e-2,
                                             around_norm.data()});
    CHECK(over == y);
    CHECK(around_norm == x);
    std::vector<double> dweight(width, 1.0), din = dout;
    for_each_row(column_block_count(width),
                 column_sums<rms_norm_weight_term<double>, double>{
                     {x.data(), kept.data(), dout.data(), width}, dweight.data(), rows, width});
    std::vector<double> again(y.size());
    for_each_row(rows, rms_norm_rows_again<double>{x.data(), weight.data(), kept.data(), again.data(), width});
    CHECK(again == y);
    auto around = noise<double>(rows * width, 12);
    const auto beside = around;
    for_each_row(rows, rms_norm_rows_backward<double>{x.data(), weight.data(), kept.data(), din.data(), around.data(),
                                                      width, around.data()});
    for_each_row(rows,
                 rms_norm_rows_backward<double>{x.data(), weight.data(), kept.data(), din.data(), din.data(), width});
    for (std::size_t i = 0; i < din.size(); ++i) CHECK(around[i] == doctest::Approx(beside[i] + din[i]));
    check_near(din, differences(x, dout, [&](const auto& in) { return forward(in, weight); }), 1e-7);
    auto by_weight = differences(weight, dout, [&](const auto& w) { return forward(x, w); });
    for (double& value : by_weight) value += 1.0;  // it adds to what is there
    check_near(dweight, by_weight, 1e-7);
  }
}

TEST_CASE("rotary positions turn pairs half a head apart, and the transpose turns them back") {
  const std::size_t length = 6, heads = 2, head_size = 8, half = 4, stride = heads * head_size + 3, tokens = 12;
  std::vector<double> cosine(length * half), sine(length * half);
  fill_rotary_table(cosine.data(), sine.data(), length, head_size, 1e6);
  const auto x = noise<double>(tokens * stride, 11);
  auto y = x;
  for_each_row(tokens, rotate_heads<double>{y.data(), cosine.data(), sine.data(), stride, length, heads, head_size});
  for (std::size_t t = 0; t < tokens; ++t) {
    for (std::size_t h = 0; h < heads; ++h) {
      for (std::size_t j = 0; j < half; ++j) {
        const double angle = static_cast<double>(t % length) * std::pow(1e6, -2.0 * static_cast<double>(j) / 8.0);
        const std::size_t at = t * stride + h * head_size + j;
        CHECK(y[at] == doctest::Approx(x[at] * std::cos(angle) - x[at + half] * std::sin(angle)));
        CHECK(y[at + half] == doctest::Approx(x[at + half] * std::cos(angle) + x[at] * std::sin(angle)));
      }
    }
    for (std::size_t j = heads * head_size; j < stride; ++j) CHECK(y[t * stride + j] == x[t * stride + j]);
  }
  std::vector<belay::bf16> rounded(tokens * stride);
  std::vector<float> narrow_x(x.begin(), x.end()), narrow_cosine(cosine.begin(), cosine.end()),
      narrow_sine(sine.begin(), sine.end()), narrow_y = narrow_x;
  for_each_row(tokens, rotate_heads<float>{narrow_y.data(), narrow_cosine.data(), narrow_sine.data(), stride, length,
                                           heads, head_size});
  for_each_row(tokens, rotated_rows<float, belay::bf16>{narrow_x.data(), rounded.data(), narrow_cosine.data(),
                                                        narrow_sine.data(), stride, length, heads, head_size});
  CHECK(rounded == std::vector<belay::bf16>(narrow_y.begin(), narrow_y.end()));
  for_each_row(tokens, rotate_heads<double>{y.data(), cosine.data(), sine.data(), stride, length, heads, head_size,
                                            rotation::transposed});
  check_near(y, x, 1e-14);
}
