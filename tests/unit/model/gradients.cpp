// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "unit/model/support/gradients.hpp"

#include <doctest/doctest.h>

#include "model/attention.hpp"
#include "model/cross_entropy.hpp"
#include "model/decoder_layer.hpp"
#include "model/embedding.hpp"
#include "model/head.hpp"
#include "model/rms_norm.hpp"
#include "unit/model/support/exchange.hpp"
#include "unit/model/support/frame.hpp"
#include "unit/model/support/numbers.hpp"

using all_local = test::exchange<double>;

TEST_CASE("the gradients of RMSNorm are its differences") {
  for (std::size_t width : {1U, 5U, 8U, 19U}) {
    model::rms_norm<double> norm("norm", width, 1e-5);
    test::memory<double> parameters(norm, 1);
    test::check_gradients(norm, parameters, {2, 3, width}, 2);
  }
}

TEST_CASE("the gradients of attention are its differences") {
  const model::rotary<double> positions(80, 6, 100.0);
  for (std::size_t kv_heads : {1U, 2U, 4U}) {
    model::attention<double> attention("self_attn", {5, 4, kv_heads, 6}, positions);
    test::memory<double> parameters(attention, 3);
    test::check_gradients(attention, parameters, {2, 7, 5}, 4);
  }
}

TEST_CASE("the gradients of attention are its differences when a sequence takes two blocks of queries") {
  const model::rotary<double> positions(80, 2, 100.0);
  model::attention<double> attention("self_attn", {2, 2, 1, 2}, positions);
  test::memory<double> parameters(attention, 3);
  test::check_gradients(attention, parameters, {1, model::causal_attention<double>::block + 3, 2}, 4);
}

TEST_CASE("the gradients of the head are its differences") {
  model::head<double> head("norm", "lm_head", 11, 6, 1e-5);
  test::memory<double> parameters(head, 5);
  test::check_gradients(head, parameters, {2, 3, 6}, 6);
}

TEST_CASE("the gradients of a mixture of experts are its differences, with its load-balancing loss") {
  all_local all_here(200);
  model::moe_block<double, all_local> block("layer", {6, 5, 4, 2}, 1e-5, {0, 4}, all_here);
  block.set_balance_scale(0.3);
  test::memory<double> parameters(block, 7);
  const auto balance = [](const auto& residue) {
    const auto& routed = residue.routed;
    double sum = 0;
    for (std::size_t e = 0; e < routed.experts; ++e) {
      double probability = 0;
      for (std::size_t row = 0; row < routed.rows; ++row) probability += routed.probabilities(row, e);
      sum += static_cast<double>(routed.counts[e]) * probability;
    }
    const auto rows = static_cast<double>(routed.rows);
    return 0.3 * static_cast<double>(routed.experts) * sum / (rows * rows);
  };
  test::check_gradients(block, parameters, {2, 5, 6}, 8, 1e-6, balance);
}

TEST_CASE("the gradients of a whole decoder layer are its differences") {
  all_local all_here(200);
  const model::rotary<double> positions(8, 4, 1e4);
  for (std::size_t kv_heads : {1U, 2U}) {
    model::decoder_layer<double, all_local> layer(0, {8, 2, kv_heads, 4}, {8, 7, 4, 2}, 1e-5, positions, {0, 4},
                                                  all_here);
    test::memory<double> parameters(layer, 9);
    test::check_gradients(layer, parameters, {2, 5, 8}, 10);
  }
}

TEST_CASE("the gradients of the embedding are sums over the tokens that used a row") {
  model::embedding<double> embedding("embed", 5, 3);
  test::memory<double> parameters(embedding, 11);
  const std::int32_t tokens[] = {4, 0, 4, 1, 4, 2};
  test::frame call;
  auto residue = embedding.forward(call, belay::view<const std::int32_t, 2>(tokens, {2, 3}));
  auto& table = parameters.entries().front();
  for (std::size_t i = 0; i < 6; ++i) {
    for (std::size_t c = 0; c < 3; ++c) {
      CHECK(residue.out(i / 3, i % 3, c) == table.value[static_cast<std::size_t>(tokens[i]) * 3 + c]);
    }
  }
  auto dout = test::numbers(12).make<double>(belay::extents<3>{2, 3, 3});
  embedding.backward(call, std::move(residue), belay::view<const double, 3>(dout.view()));
  for (std::size_t c = 0; c < 3; ++c) {
    const double* d = dout.values.data() + c;
    CHECK(table.gradient[c] == d[3]);
    CHECK(table.gradient[4 * 3 + c] == doctest::Approx(d[0] + d[6] + d[12]).epsilon(1e-14));
    CHECK(table.gradient[3 * 3 + c] == 0);
  }
}

TEST_CASE("the gradient of the cross-entropy is its differences, with ignored targets and in place") {
  auto logits = test::numbers(13).make<double>(belay::extents<3>{2, 3, 7}, 3);
  const std::int32_t target_values[] = {6, model::ignored, 0, 3, 3, model::ignored};
  const belay::view<const std::int32_t, 2> targets(target_values, {2, 3});
  CHECK(model::target_count(targets) == 4);
  const auto loss = [&] { return 0.25 * model::cross_entropy<double>(logits.view(), targets); };
  test::tensor<double, 3> gradient = logits;
  const double both = model::cross_entropy<double>(gradient.view(), targets, 0.25, gradient.view());
  CHECK(0.25 * both == loss());
  CHECK(test::difference_error(logits.values, logits.size(), gradient.values, loss) < 1e-8);
}

TEST_CASE("every layer takes zero sequences and adds nothing") {
  all_local all_here(0);
  const model::rotary<double> positions(8, 4, 1e4);
  model::decoder_layer<double, all_local> layer(0, {8, 2, 1, 4}, {8, 7, 4, 2}, 1e-5, positions, {0, 4}, all_here);
  model::head<double> head("norm", "lm_head", 11, 8, 1e-5);
  test::memory<double> parameters(layer, 1);
  test::memory<double> head_parameters(head, 1);
  test::tensor<double, 3> x({0, 5, 8});
  test::tensor<double, 3> dx({0, 5, 8});
  test::tensor<double, 3> dlogits({0, 5, 11});
  test::frame call;
  auto hidden = layer.forward(call, belay::view<const double, 3>(x.view()));
  auto logits = head.forward(call, belay::view<const double, 3>(hidden.out));
  CHECK(logits.out.shape() == belay::extents<3>{0, 5, 11});
  head.backward(call, std::move(logits), belay::view<const double, 3>(dlogits.view()), dx.view());
  layer.backward(call, std::move(hidden), belay::view<const double, 3>(x.view()), dx.view());
  for (auto* all : {&parameters, &head_parameters}) {
    for (auto& entry : all->entries()) {
      for (double g : entry.gradient) CHECK(g == 0);
    }
  }
}
