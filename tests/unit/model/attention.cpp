// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A kit with an attention of its own, by the definition, beside the blocks that all other kits get.
#include "model/attention.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "belay/step.hpp"
#include "model/products.hpp"
#include "unit/model/support/numbers.hpp"

namespace own {

struct kit : belay::host_kit<> {
  int forwards = 0;
  int backwards = 0;
};

// One head of one sequence: where its rows begin, and the columns of query, key and value.
struct head {
  std::size_t row, query, key, value, number;
};

template <class Call, class Visit>
void each_head(const Call& call, Visit visit) {
  const auto& shape = call.shape;
  for (std::size_t s = 0; s < call.packed.rows / call.length; ++s) {
    for (std::size_t h = 0; h < shape.heads; ++h) {
      const std::size_t shared = h / (shape.heads / shape.kv_heads) * shape.head_dim;
      visit(head{s * call.length, h * shape.head_dim, shape.query_width() + shared,
                 shape.query_width() + shape.key_width() + shared, s * shape.heads + h});
    }
  }
}

double inner(const double* a, const double* b, std::size_t count) {
  double sum = 0;
  for (std::size_t i = 0; i < count; ++i) sum += a[i] * b[i];
  return sum;
}

void attention_forward(kit& self, const model::attention_forward_call<double>& call) {
  ++self.forwards;
  const std::size_t dim = call.shape.head_dim;
  const double scale = 1 / std::sqrt(static_cast<double>(dim));
  each_head(call, [&](const head& h) {
    for (std::size_t i = 0; i < call.length; ++i) {
      std::vector<double> weights(i + 1);
      double sum = 0;
      for (std::size_t j = 0; j <= i; ++j)
        sum += weights[j] =
            std::exp(scale * inner(call.packed.row(h.row + i) + h.query, call.packed.row(h.row + j) + h.key, dim));
      call.log_sums.data()[h.number * call.length + i] = std::log(sum);
      for (std::size_t c = 0; c < dim; ++c) {
        double& out = call.context.row(h.row + i)[h.query + c] = 0;
        for (std::size_t j = 0; j <= i; ++j) out += weights[j] / sum * call.packed.row(h.row + j)[h.value + c];
      }
    }
  });
}

void attention_backward(kit& self, const model::attention_backward_call<double>& call) {
  ++self.backwards;
  const std::size_t dim = call.shape.head_dim;
  const double scale = 1 / std::sqrt(static_cast<double>(dim));
  for (std::size_t i = 0; i < call.dpacked.rows; ++i) std::fill_n(call.dpacked.row(i), call.dpacked.columns, 0.0);
  each_head(call, [&](const head& h) {
    for (std::size_t i = 0; i < call.length; ++i) {
      const double* const q = call.packed.row(h.row + i) + h.query;
      const double* const dout = call.dcontext.row(h.row + i) + h.query;
      const double mean = inner(call.context.row(h.row + i) + h.query, dout, dim);
      for (std::size_t j = 0; j <= i; ++j) {
        const double* const k = call.packed.row(h.row + j) + h.key;
        const double p = std::exp(scale * inner(q, k, dim) - call.log_sums.data()[h.number * call.length + i]);
        const double ds = scale * p * (inner(dout, call.packed.row(h.row + j) + h.value, dim) - mean);
        for (std::size_t c = 0; c < dim; ++c) {
          call.dpacked.row(h.row + i)[h.query + c] += ds * k[c];
          call.dpacked.row(h.row + j)[h.key + c] += ds * q[c];
          call.dpacked.row(h.row + j)[h.value + c] += p * dout[c];
        }
      }
    }
  });
}

}  // namespace own

namespace {

static_assert(model::has_attention<own::kit, double> && !model::has_attention<belay::host_kit<>, double>);

// Output, input's gradient and weights' gradients of an attention over sequences of two blocks and a rest.
template <class Engine>
std::vector<double> one_step(Engine& engine) {
  constexpr std::size_t length = 2 * model::causal_attention<double>::block + 3;
  const model::rotary<double> positions(length, 6, 100.0);
  model::attention<double> layer("self_attn", {5, 4, 2, 6}, positions);
  test::memory<double> parameters(layer, 3);
  test::numbers random(4);
  const auto x = random.make<double>(belay::extents<3>{2, length, 5});
  const auto dy = random.make<double>(belay::extents<3>{2, length, 5});
  belay::step step{engine};
  auto handle = belay::forward(step, layer, x.view());
  const auto out = handle.out().flat();
  std::vector<double> result(out.begin(), out.end());
  const auto dx = std::move(handle).backward(dy.view());
  result.insert(result.end(), dx.values().flat().begin(), dx.values().flat().end());
  static_cast<void>(std::move(step).commit());
  for (const auto& entry : parameters.entries())
    result.insert(result.end(), entry.gradient.begin(), entry.gradient.end());
  return result;
}

}  // namespace

TEST_CASE("a kit's own attention is used, and the blocks compute what the definition says") {
  belay::tier_meter meter;
  belay::engine<belay::host_pages, own::kit> by_definition{belay::host_pages{1 << 22}, meter};
  belay::host_engine in_blocks{belay::host_pages{1 << 22}, meter};
  in_blocks.kit().use_products(model::products());
  const auto expected = one_step(by_definition), got = one_step(in_blocks);
  CHECK(by_definition.kit().forwards == 1);
  CHECK(by_definition.kit().backwards == 1);
  REQUIRE(expected.size() == got.size());
  double worst = 0;
  for (std::size_t i = 0; i < got.size(); ++i) worst = std::max(worst, std::abs(expected[i] - got[i]));
  CHECK(worst < 1e-11);
}
