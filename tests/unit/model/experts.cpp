// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Experts over grouped rows against a dense mixture, where every expert sees every token and the weights of
// those not chosen are zero.
#include "model/experts.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <vector>

#include "model/moe_block.hpp"
#include "unit/model/support/exchange.hpp"
#include "unit/model/support/frame.hpp"
#include "unit/model/support/numbers.hpp"

namespace {

constexpr std::size_t hidden = 6;
constexpr std::size_t width = 5;

using tensor = test::tensor<double, 2>;

/// One expert over every row, each weighted by weight(row, expert): adds its output and, from `dout`, its gradients.
void dense_expert(const double* w1, const double* w3, const double* w2, const tensor& x, const tensor& weight,
                  std::size_t expert, tensor& out, const tensor& dout, double* dw1, double* dw3, double* dw2) {
  for (std::size_t row = 0; row < x.shape[0]; ++row) {
    const double share = weight.view()(row, expert);
    double gate[width] = {};
    double up[width] = {};
    double dh[width] = {};
    for (std::size_t i = 0; i < width; ++i) {
      for (std::size_t c = 0; c < hidden; ++c) {
        gate[i] += w1[i * hidden + c] * x.view()(row, c);
        up[i] += w3[i * hidden + c] * x.view()(row, c);
      }
    }
    for (std::size_t i = 0; i < width; ++i) {
      const double sigmoid = 1 / (1 + std::exp(-gate[i]));
      for (std::size_t c = 0; c < hidden; ++c) {
        out.view()(row, c) += share * w2[c * width + i] * gate[i] * sigmoid * up[i];
        dh[i] += share * w2[c * width + i] * dout.view()(row, c);
        dw2[c * width + i] += share * dout.view()(row, c) * gate[i] * sigmoid * up[i];
      }
      const double dup = dh[i] * gate[i] * sigmoid;
      const double dgate = dh[i] * up[i] * (sigmoid + gate[i] * sigmoid * (1 - sigmoid));
      for (std::size_t c = 0; c < hidden; ++c) {
        dw1[i * hidden + c] += dgate * x.view()(row, c);
        dw3[i * hidden + c] += dup * x.view()(row, c);
      }
    }
  }
}

}  // namespace

TEST_CASE("the experts' outputs and gradients are those of a dense mixture") {
  constexpr std::size_t count = 4;
  // 1400 tokens: an expert's rows take more than one chunk.
  for (std::size_t rows : {1U, 9U, 1400U}) {
    test::numbers random(rows);
    model::experts<double> experts("experts", count, hidden, width, {0, count});
    test::memory<double> parameters(experts, 2);
    tensor x = random.make<double>(belay::extents<2>{rows, hidden});
    tensor logits = random.make<double>(belay::extents<2>{rows, count}, 2);
    tensor dout = random.make<double>(belay::extents<2>{rows, hidden});

    test::frame call;
    test::exchange<double> all_here(2 * rows + 3);
    const auto routed = belay::route<double>(call, logits.view(), 2);
    tensor y({rows, hidden});
    tensor dx({rows, hidden});
    tensor dweights({rows, 2});
    auto sent = all_here.dispatch(call, belay::view<const double, 2>(x.view()), routed);
    auto inner = experts.forward(call, sent.rows(), sent.offsets(), sent.outputs());
    auto merged = std::move(sent).combine(call, y.view());
    auto back = std::move(merged).backward(call, belay::view<const double, 2>(dout.view()), dweights.view());
    experts.backward(call, std::move(inner), back.offsets(), back.output_gradients(), back.row_gradients());
    std::move(back).finish(call, dx.view());

    tensor weight({rows, count});
    for (std::size_t row = 0; row < rows; ++row) {
      for (std::size_t j = 0; j < 2; ++j) {
        weight.view()(row, static_cast<std::size_t>(routed.choices(row, j))) = routed.weights(row, j);
      }
    }
    constexpr std::size_t size = hidden * width;
    std::vector<double> dw13(2 * count * size);
    std::vector<double> dw2(count * size);
    tensor expected({rows, hidden});
    for (std::size_t e = 0; e < count; ++e) {
      const double* const w1 = &parameters.named("experts.w13").value[2 * e * size];
      dense_expert(w1, w1 + size, &parameters.named("experts.w2").value[e * size], x, weight, e, expected, dout,
                   &dw13[2 * e * size], &dw13[(2 * e + 1) * size], &dw2[e * size]);
    }
    for (std::size_t i = 0; i < y.size(); ++i) CHECK(y.values[i] == doctest::Approx(expected.values[i]).epsilon(1e-11));
    const auto& g13 = parameters.named("experts.w13").gradient;
    const auto& g2 = parameters.named("experts.w2").gradient;
    for (std::size_t i = 0; i < dw13.size(); ++i) CHECK(g13[i] == doctest::Approx(dw13[i]).epsilon(1e-10));
    for (std::size_t i = 0; i < dw2.size(); ++i) CHECK(g2[i] == doctest::Approx(dw2[i]).epsilon(1e-10));
  }
}

TEST_CASE("more room for rows changes no bit of a mixture's output or gradients") {
  std::vector<std::vector<float>> results;
  for (std::size_t capacity : {22U, 50U, 400U}) {
    test::exchange<float> all_here(capacity);
    model::moe_block<float, test::exchange<float>> block("layer", {hidden, width, 4, 2}, 1e-5, {0, 4}, all_here);
    block.set_balance_scale(0.1);
    test::memory<float> parameters(block, 3);
    const auto x = test::numbers(4).make<float>(belay::extents<3>{1, 11, hidden});
    test::tensor<float, 3> dx({1, 11, hidden});
    test::frame call;
    auto residue = block.forward(call, x.view());
    std::vector<float> all(residue.out.data(), residue.out.data() + residue.out.size());
    block.backward(call, std::move(residue), x.view(), dx.view());
    all.insert(all.end(), dx.values.begin(), dx.values.end());
    for (auto& entry : parameters.entries()) all.insert(all.end(), entry.gradient.begin(), entry.gradient.end());
    results.push_back(all);
  }
  CHECK(results[0] == results[1]);
  CHECK(results[0] == results[2]);
}

TEST_CASE("experts held in part compute what the whole computes for the same rows") {
  test::numbers random(5);
  const auto x = random.make<double>(belay::extents<2>{7, hidden});
  const std::size_t of_all[] = {0, 0, 3, 7, 7};
  const std::size_t of_part[] = {0, 3, 7};
  model::experts<double> all("experts", 4, hidden, width, {0, 4});
  model::experts<double> part("experts", 4, hidden, width, {1, 2});
  test::memory<double> parameters(all, 6);
  test::memory<double> held(part, 7);
  for (auto& entry : held.entries()) {
    const auto& whole = parameters.named(entry.name).value;
    std::copy_n(whole.begin() + static_cast<std::ptrdiff_t>(entry.value.size() / 2), entry.value.size(),
                entry.value.begin());  // behind expert 0, of two
  }
  tensor first({7, hidden});
  tensor second({7, hidden});
  test::frame call;
  static_cast<void>(all.forward(call, x.view(), of_all, first.view()));
  static_cast<void>(part.forward(call, x.view(), of_part, second.view()));
  CHECK(first.values == second.values);
}
