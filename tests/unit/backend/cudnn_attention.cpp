// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The door to cuDNN over a cuDNN of the host, which computes the graphs that it is given: they are an attention, and
// the engine is the first that serves.
#include "belay/backend/cuda/cudnn_attention.cuh"

#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <cstddef>
#include <string>
#include <vector>

#include "belay/core/dtype.hpp"

using belay::bf16;
using belay::cuda::attention_pass;
using belay::cuda::attention_problem;
using belay::cuda::cudnn_attention;

namespace {

using plan_answer = belay::cuda::library_answer<cudnn_attention::plan_type>;

// Packed rows of queries, keys and values as a model has them, two sequences, and all results.
struct attention_case {
  belay::attention_sizes sizes;
  std::size_t rows = 2 * sizes.length, queries = sizes.heads * sizes.head_size, keys = sizes.kv_heads * sizes.head_size,
              width = queries + 2 * keys + 8;
  std::vector<bf16> packed = numbers(rows * width, 7), context = std::vector<bf16>(rows * queries),
                    dcontext = numbers(rows * queries, 5), dqueries = context, dkeys = std::vector<bf16>(rows * keys),
                    dvalues = dkeys;
  std::vector<float> log_sums = std::vector<float>(rows * sizes.heads), sums = log_sums;

  static std::vector<bf16> numbers(std::size_t count, std::size_t step) {
    std::vector<bf16> out;
    for (std::size_t i = 0; i < count; ++i)
      out.emplace_back(0.11F * static_cast<float>((i * step + i / 3) % 19) - 1.0F);
    return out;
  }
  [[nodiscard]] belay::attention_call<bf16> forward() {
    const bf16* const x = packed.data();
    return {sizes,
            {x, rows, queries, width},
            {x + queries, rows, keys, width},
            {x + queries + keys, rows, keys, width},
            {context.data(), rows, queries, queries},
            log_sums.data()};
  }
  [[nodiscard]] belay::cuda::narrow_gradient_call backward() {
    const auto call = forward();
    return {sizes,
            call.queries,
            call.keys,
            call.values,
            {context.data(), rows, queries, queries},
            log_sums.data(),
            {dcontext.data(), rows, queries, queries},
            {dqueries.data(), rows, queries, queries},
            {dkeys.data(), rows, keys, keys},
            {dvalues.data(), rows, keys, keys},
            sums.data()};
  }
};

// Runs a call by the first plan, or says why not.
template <class Call>
std::string attend(cudnn_attention& library, attention_pass pass, const Call& call) {
  std::array<plan_answer, 8> answers{};
  std::size_t count = 0;
  const attention_problem problem = belay::cuda::problem_of(pass, call);
  std::string failed = library.plans(problem, cudnn_attention::bound(problem), answers, count);
  if (!failed.empty() || count == 0) return "no plan: " + failed;
  const std::vector<std::byte> room(cudnn_attention::bound(problem));
  return library.run(call, answers[count - 1].way, {const_cast<std::byte*>(room.data()), room.size()});
}

// The largest difference from what an attention is, of context, sums and gradients.
double worst_difference(attention_case& of) {
  const auto [heads, kv_heads, d, length] = of.sizes;
  const auto packed = [&](std::size_t row, std::size_t column) {
    return static_cast<double>(of.packed[row * of.width + column]);
  };
  double worst = 0;
  const auto compare = [&](double got, double expected) {
    worst = std::fmax(worst, std::abs(got - expected) / (1 + std::abs(expected)));
  };
  std::vector<double> dk(of.rows * of.keys), dv(of.rows * of.keys);
  for (std::size_t row = 0; row < of.rows; ++row)
    for (std::size_t h = 0; h < heads; ++h) {
      const std::size_t first = row / length * length, seen = row - first + 1, kv = h * kv_heads / heads;
      std::vector<double> p(seen), o(d), dp(seen);
      double sum = 0, rowsum = 0;
      for (std::size_t j = 0; j < seen; ++j) {
        double score = 0;
        for (std::size_t c = 0; c < d; ++c)
          score += packed(row, h * d + c) * packed(first + j, of.queries + kv * d + c);
        sum += p[j] = std::exp(score * of.sizes.scale());
      }
      compare(static_cast<double>(of.log_sums[(row / length * heads + h) * length + row % length]), std::log(sum));
      for (std::size_t c = 0; c < d; ++c) {
        for (std::size_t j = 0; j < seen; ++j)
          o[c] += p[j] / sum * packed(first + j, of.queries + of.keys + kv * d + c);
        compare(static_cast<double>(of.context[row * of.queries + h * d + c]), o[c]);
        rowsum += o[c] * static_cast<double>(of.dcontext[row * of.queries + h * d + c]);
      }
      std::vector<double> dq(d);
      for (std::size_t j = 0; j < seen; ++j) {
        const double weight = p[j] / sum;
        for (std::size_t c = 0; c < d; ++c) {
          const double slope = static_cast<double>(of.dcontext[row * of.queries + h * d + c]);
          dp[j] += slope * packed(first + j, of.queries + of.keys + kv * d + c);
          dv[(first + j) * of.keys + kv * d + c] += weight * slope;
        }
        const double ds = weight * (dp[j] - rowsum) * of.sizes.scale();
        for (std::size_t c = 0; c < d; ++c) {
          dq[c] += ds * packed(first + j, of.queries + kv * d + c);
          dk[(first + j) * of.keys + kv * d + c] += ds * packed(row, h * d + c);
        }
      }
      for (std::size_t c = 0; c < d; ++c)
        compare(static_cast<double>(of.dqueries[row * of.queries + h * d + c]), dq[c]);
    }
  for (std::size_t i = 0; i < dk.size(); ++i)
    compare(static_cast<double>(of.dkeys[i]), dk[i]), compare(static_cast<double>(of.dvalues[i]), dv[i]);
  return worst;
}

// The library that the calling thread's next handle is of, as it is at first.
fakes::played_cudnn& played(std::vector<fakes::cudnn_engine> engines = {{}}) {
  fakes::played_cudnn& now = fakes::played_cudnn::current() = {};
  now.engines = std::move(engines);
  return now;
}

}  // namespace

TEST_CASE("the graphs that cuDNN is given are a causal attention of grouped heads, and its gradients") {
  for (const belay::attention_sizes& sizes : {belay::attention_sizes{2, 2, 8, 5}, {4, 2, 16, 9}, {4, 1, 8, 12}}) {
    const fakes::played_cudnn& of = played();
    {
      cudnn_attention library(nullptr);
      attention_case one{sizes};
      CHECK(attend(library, attention_pass::forward, one.forward()).empty());
      CHECK(attend(library, attention_pass::backward, one.backward()).empty());
      CHECK(worst_difference(one) < 2e-2);  // of results in bf16
    }
    CHECK(of.handles + of.objects == 0);
  }
}

TEST_CASE("of cuDNN's engines the first is taken that is deterministic, stays within the formula and is there") {
  const std::int64_t bound =
      static_cast<std::int64_t>(cudnn_attention::bound({attention_pass::forward, 2, 5, 2, 2, 8}));
  const fakes::played_cudnn& of = played({{.index = 1, .deterministic = false},
                                          {.index = 2, .workspace = bound + 1},
                                          {.index = 3, .supported = false},
                                          {.index = 4, .workspace = bound},
                                          {.index = 5}});
  cudnn_attention library(nullptr);
  attention_case one{{2, 2, 8, 5}};
  CHECK(attend(library, attention_pass::forward, one.forward()).empty());
  CHECK(of.engines_executed == std::vector<std::int64_t>{4});
}

TEST_CASE("an engine's word has its number, its settings and the version of cuDNN") {
  const auto word = [](std::size_t version, const fakes::cudnn_engine& engine) {
    played({engine}).version = version;
    cudnn_attention library(nullptr);
    std::array<plan_answer, 8> answers{};
    std::size_t count = 0;
    attention_case one{{2, 2, 8, 5}};
    const attention_problem problem = belay::cuda::problem_of(attention_pass::forward, one.forward());
    CHECK(library.plans(problem, cudnn_attention::bound(problem), answers, count).empty());
    REQUIRE(count == 1);
    return answers[0].word;
  };
  const std::uint64_t first = word(91900, {.index = 4, .stages = 2});
  CHECK(word(91900, {.index = 4, .stages = 2}) == first);
  CHECK(word(91900, {.index = 5, .stages = 2}) != first);
  CHECK(word(91900, {.index = 4, .stages = 3}) != first);
  CHECK(word(92000, {.index = 4, .stages = 2}) != first);
}

TEST_CASE("rows that are not aligned as engines load them, and graphs that no engine knows, have no plan") {
  std::array<plan_answer, 8> answers{};
  std::size_t count = 1;
  attention_case one{{2, 2, 8, 5}};
  attention_problem problem = belay::cuda::problem_of(attention_pass::forward, one.forward());
  {
    const fakes::played_cudnn& of = played({});
    cudnn_attention library(nullptr);
    CHECK(library.plans(problem, 1 << 30, answers, count).empty());
    CHECK(count == 0);
    CHECK(of.handles == 1);
  }
  played();
  cudnn_attention library(nullptr);
  problem.alignment = 8;
  CHECK(library.plans(problem, 1 << 30, answers, count).empty());
  CHECK(count == 0);
  belay::attention_call<bf16> shifted = one.forward();
  shifted.queries.data += 1;
  CHECK(belay::cuda::problem_of(attention_pass::forward, shifted).alignment == 2);
}

TEST_CASE("a cuDNN that does not open says so when it is asked for a plan") {
  played().opens = false;
  cudnn_attention library(nullptr);
  attention_case one{{2, 2, 8, 5}};
  CHECK(attend(library, attention_pass::forward, one.forward()) ==
        "no plan: cudnnCreate: CUDNN_STATUS_NOT_INITIALIZED");
}
