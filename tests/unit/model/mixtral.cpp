// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The whole model against its definition, written out once more in plain loops.
#include "model/mixtral.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "model/cross_entropy.hpp"
#include "unit/model/support/exchange.hpp"
#include "unit/model/support/frame.hpp"
#include "unit/model/support/numbers.hpp"

namespace {

using vector = std::vector<double>;

template <class T>
class definition {
 public:
  definition(const model::mixtral_config& config, test::memory<T>& parameters) : c_(config), parameters_(&parameters) {}

  /// Logits [length][vocab] of one sequence.
  std::vector<vector> logits(const std::vector<std::int32_t>& tokens) {
    std::vector<vector> x;
    for (std::int32_t token : tokens) {
      const vector table = weights("model.embed_tokens.weight");
      const auto first = table.begin() + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(token) * c_.hidden);
      x.emplace_back(first, first + static_cast<std::ptrdiff_t>(c_.hidden));
    }
    for (std::size_t n = 0; n < c_.layers; ++n) {
      const std::string layer = "model.layers." + std::to_string(n);
      attend(x, layer);
      for (vector& row : x) {
        add(row, mixture(norm(row, layer + ".post_attention_layernorm.weight"), layer + ".block_sparse_moe"));
      }
    }
    std::vector<vector> result;
    for (const vector& row : x) result.push_back(times(weights("lm_head.weight"), norm(row, "model.norm.weight")));
    return result;
  }

 private:
  vector weights(const std::string& name) {
    const auto& value = parameters_->named(name).value;
    return vector(value.begin(), value.end());
  }
  static vector times(const vector& matrix, const vector& x) {
    vector y(matrix.size() / x.size(), 0.0);
    for (std::size_t i = 0; i < y.size(); ++i) {
      for (std::size_t j = 0; j < x.size(); ++j) y[i] += matrix[i * x.size() + j] * x[j];
    }
    return y;
  }
  static void add(vector& x, const vector& y) {
    for (std::size_t i = 0; i < x.size(); ++i) x[i] += y[i];
  }
  vector norm(const vector& x, const std::string& name) {
    double squares = 0;
    for (double value : x) squares += value * value;
    const double scale = 1 / std::sqrt(squares / static_cast<double>(x.size()) + c_.norm_eps);
    vector y = weights(name);
    for (std::size_t i = 0; i < x.size(); ++i) y[i] *= x[i] * scale;
    return y;
  }
  void rotate(vector& heads, std::size_t position) const {
    const std::size_t d = c_.head_dim;
    for (std::size_t first = 0; first < heads.size(); first += d) {
      for (std::size_t j = 0; j < d / 2; ++j) {
        const double angle = static_cast<double>(position) *
                             std::pow(c_.rope_theta, -2.0 * static_cast<double>(j) / static_cast<double>(d));
        const double a = heads[first + j];
        const double b = heads[first + j + d / 2];
        heads[first + j] = a * std::cos(angle) - b * std::sin(angle);
        heads[first + j + d / 2] = b * std::cos(angle) + a * std::sin(angle);
      }
    }
  }
  void attend(std::vector<vector>& x, const std::string& layer) {
    std::vector<vector> q;
    std::vector<vector> k;
    std::vector<vector> v;
    for (std::size_t t = 0; t < x.size(); ++t) {
      const vector h = norm(x[t], layer + ".input_layernorm.weight");
      q.push_back(times(weights(layer + ".self_attn.q_proj.weight"), h));
      k.push_back(times(weights(layer + ".self_attn.k_proj.weight"), h));
      v.push_back(times(weights(layer + ".self_attn.v_proj.weight"), h));
      rotate(q.back(), t);
      rotate(k.back(), t);
    }
    const std::size_t d = c_.head_dim;
    for (std::size_t t = 0; t < x.size(); ++t) {
      vector context(c_.heads * d, 0.0);
      for (std::size_t head = 0; head < c_.heads; ++head) {
        const std::size_t shared = head / (c_.heads / c_.kv_heads);
        vector p(t + 1, 0.0);
        double sum = 0;
        for (std::size_t s = 0; s <= t; ++s) {
          for (std::size_t j = 0; j < d; ++j) p[s] += q[t][head * d + j] * k[s][shared * d + j];
          p[s] = std::exp(p[s] / std::sqrt(static_cast<double>(d)));
          sum += p[s];
        }
        for (std::size_t s = 0; s <= t; ++s) {
          for (std::size_t j = 0; j < d; ++j) context[head * d + j] += p[s] / sum * v[s][shared * d + j];
        }
      }
      add(x[t], times(weights(layer + ".self_attn.o_proj.weight"), context));
    }
  }
  vector mixture(const vector& x, const std::string& name) {
    vector p = times(weights(name + ".gate.weight"), x);
    for (double& value : p) value = std::exp(value);  // the softmax's sum cancels in the weights
    std::vector<std::size_t> order(p.size());
    for (std::size_t e = 0; e < p.size(); ++e) order[e] = e;
    std::sort(order.begin(), order.end(),
              [&](std::size_t a, std::size_t b) { return p[a] > p[b] || (p[a] == p[b] && a < b); });
    double chosen = 0;
    for (std::size_t j = 0; j < c_.experts_per_token; ++j) chosen += p[order[j]];
    vector y(x.size(), 0.0);
    for (std::size_t j = 0; j < c_.experts_per_token; ++j) {
      const std::size_t e = order[j];
      const vector gate_up = times(expert(name + ".experts.w13", e, 2), x);
      vector gate(c_.expert_width);
      for (std::size_t i = 0; i < gate.size(); ++i)
        gate[i] = gate_up[i] / (1 + std::exp(-gate_up[i])) * gate_up[gate.size() + i];
      vector out = times(expert(name + ".experts.w2", e, 1), gate);
      for (double& value : out) value *= p[e] / chosen;
      add(y, out);
    }
    return y;
  }
  vector expert(const std::string& name, std::size_t e, std::size_t matrices) {
    const vector all = weights(name);
    const auto size = static_cast<std::ptrdiff_t>(matrices * c_.hidden * c_.expert_width);
    const auto first = all.begin() + static_cast<std::ptrdiff_t>(e) * size;
    return vector(first, first + size);
  }

  model::mixtral_config c_;
  test::memory<T>* parameters_;
};

model::mixtral_config a_small_one(std::size_t kv_heads) {
  model::mixtral_config config;
  config.vocab = 13;
  config.hidden = 12;
  config.expert_width = 10;
  config.layers = 2;
  config.heads = 4;
  config.kv_heads = kv_heads;
  config.head_dim = 4;
  config.experts = 5;
  config.positions = 16;
  config.rope_theta = 50;
  return config;
}

template <class T, class Model>
std::vector<T> run(Model& whole, test::frame& call, belay::view<const std::int32_t, 2> tokens) {
  auto x = whole.first().forward(call, tokens).out;
  for (auto& layer : whole.layers()) x = layer.forward(call, belay::view<const T, 3>(x)).out;
  const auto out = whole.last().forward(call, belay::view<const T, 3>(x)).out;
  return std::vector<T>(out.data(), out.data() + out.size());
}

}  // namespace

TEST_CASE_TEMPLATE("a model computes what its definition says, for any sharing of keys and any length", T, float,
                   double) {
  for (std::size_t kv_heads : {1U, 2U, 4U}) {
    const auto config = a_small_one(kv_heads);
    test::exchange<T> all_here(100);
    model::mixtral<T, test::exchange<T>> whole(config, model::model_part::whole(config), {0, config.experts}, all_here);
    test::memory<T> parameters(whole, 1);
    definition<T> expected(config, parameters);
    for (std::size_t length : {1U, 2U, 11U, 16U}) {
      std::vector<std::int32_t> tokens;
      test::numbers random(length);
      for (std::size_t i = 0; i < 2 * length; ++i) {
        tokens.push_back(static_cast<std::int32_t>((random.next() + 1) * 6.4));
      }
      test::frame call;
      const auto logits = run<T>(whole, call, {tokens.data(), {2, length}});
      double worst = 0;
      for (std::size_t sequence = 0; sequence < 2; ++sequence) {
        const auto first = tokens.begin() + static_cast<std::ptrdiff_t>(sequence * length);
        const auto last = first + static_cast<std::ptrdiff_t>(length);
        const auto rows = expected.logits(std::vector<std::int32_t>(first, last));
        for (std::size_t t = 0; t < length; ++t) {
          for (std::size_t v = 0; v < config.vocab; ++v) {
            const double got = static_cast<double>(logits[(sequence * length + t) * config.vocab + v]);
            worst = std::max(worst, std::abs(got - rows[t][v]));
            REQUIRE(std::isfinite(got));
          }
        }
      }
      CHECK(worst < (sizeof(T) == 4 ? 2e-5 : 1e-12));
    }
  }
}

TEST_CASE("a model has the names and shapes of Hugging Face's Mixtral, its experts stacked") {
  const auto config = a_small_one(2);
  test::exchange<float> all_here(1);
  model::mixtral<float, test::exchange<float>> whole(config, model::model_part::whole(config), {2, 3}, all_here);
  std::vector<std::string> names;
  std::size_t held = 0;
  whole.for_each_parameter([&](auto& parameter) {
    names.push_back(parameter.name());
    held += parameter.local_size();
    const bool norm = parameter.name().find("norm") != std::string::npos;
    CHECK((parameter.decay() == belay::weight_decay::no) == norm);
    CHECK((parameter.shape().rank() == 1) == norm);
  });
  CHECK(names.size() == 3 + config.layers * 9);
  CHECK(names.front() == "model.embed_tokens.weight");
  CHECK(std::vector<std::string>(names.begin() + 10, names.begin() + 19) ==
        std::vector<std::string>{
            "model.layers.1.input_layernorm.weight", "model.layers.1.self_attn.q_proj.weight",
            "model.layers.1.self_attn.k_proj.weight", "model.layers.1.self_attn.v_proj.weight",
            "model.layers.1.self_attn.o_proj.weight", "model.layers.1.post_attention_layernorm.weight",
            "model.layers.1.block_sparse_moe.gate.weight", "model.layers.1.block_sparse_moe.experts.w13",
            "model.layers.1.block_sparse_moe.experts.w2"});
  CHECK(names[19] == "model.norm.weight");
  CHECK(names.back() == "lm_head.weight");
  const std::size_t attention = 12 * (16 + 8 + 8) + 16 * 12;
  CHECK(held == 2 * 13 * 12 + 12 + 2 * (2 * 12 + attention + 5 * 12 + 3 * 3 * 12 * 10));
}

TEST_CASE("the parts of a model are the whole, in order") {
  const auto config = a_small_one(2);
  test::exchange<float> all_here(1);
  const auto names = [&](model::model_part part) {
    model::mixtral<float, test::exchange<float>> held(config, part, {0, 5}, all_here);
    std::vector<std::string> result;
    held.for_each_parameter([&](auto& parameter) { result.push_back(parameter.name()); });
    return result;
  };
  auto both = names(model::model_part::of(config, 0, 2));
  const auto second = names(model::model_part::of(config, 1, 2));
  both.insert(both.end(), second.begin(), second.end());
  CHECK(both == names(model::model_part::whole(config)));
  CHECK_THROWS_AS(static_cast<void>(model::model_part::of(config, 2, 2)), belay::usage_error);
  const std::vector<std::size_t> too_many{1, 2};
  CHECK_THROWS_AS(static_cast<void>(model::model_part::of(config, 0, too_many)), belay::usage_error);
}

TEST_CASE("a sequence longer than the model's positions is refused") {
  const auto config = a_small_one(2);
  test::exchange<float> all_here(100);
  model::mixtral<float, test::exchange<float>> whole(config, model::model_part::whole(config), {0, 5}, all_here);
  test::memory<float> parameters(whole, 1);
  const std::vector<std::int32_t> tokens(17, 0);
  test::frame call;
  CHECK_THROWS_AS(run<float>(whole, call, {tokens.data(), {1, 17}}), belay::usage_error);
}

TEST_CASE("a later token changes no earlier logit") {
  const auto config = a_small_one(2);
  test::exchange<float> all_here(100);
  model::mixtral<float, test::exchange<float>> whole(config, model::model_part::whole(config), {0, 5}, all_here);
  test::memory<float> parameters(whole, 1);
  std::vector<std::int32_t> tokens{1, 2, 3, 4, 5, 6};
  test::frame call;
  const auto before = run<float>(whole, call, {tokens.data(), {1, 6}});
  tokens[5] = 12;
  const auto after = run<float>(whole, call, {tokens.data(), {1, 6}});
  // Experts see their rows in another grouping, so the bits may differ.
  for (std::size_t i = 0; i < 5 * config.vocab; ++i) CHECK(before[i] == doctest::Approx(after[i]).epsilon(1e-5));
  CHECK(before[5 * config.vocab] != after[5 * config.vocab]);
}
