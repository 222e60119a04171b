// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The attention of the CUDA backend as kernels of blocks whose lanes run in seeded orders, beside that of the examples'
// model, which a kit without one computes.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "belay/backend/cuda.hpp"
#include "belay/backend/cuda/attention_tiles.hpp"
#include "belay/step/arithmetic.hpp"
#include "fakes/cuda/fake_api.hpp"
#include "fakes/cuda/fiber_block.hpp"
#include "model/causal_attention.hpp"
#include "model/products.hpp"
#include "unit/model/support/numbers.hpp"

namespace {

struct kernels_here {
  std::uint64_t seed = 0;

  template <class G>
  bool teams(std::size_t count, const G& g) {
    belay::kernel::for_each_row(count, g);
    return true;
  }
  template <class K>
  bool blocks(const K& k) {
    fakes::for_each_block(k.blocks(), k, seed++);
    return true;
  }
};

struct tiled_kit : belay::host_kit<> {
  kernels_here by;
  int calls = 0;

  template <class T>
  void attention(const belay::attention_call<T>& call) {
    calls += belay::cuda::queue_attention_tiles(by, call);
  }
  template <class T>
  void attention(const belay::attention_gradient_call<T>& call) {
    calls += belay::cuda::queue_attention_tiles(by, call);
  }
};

static_assert(belay::attention_kit<tiled_kit, float> && !belay::attention_kit<belay::host_kit<>, float>);

// What a layer's call sees, without its memory.
template <class Kit>
struct bare_frame : belay::frame_arithmetic<bare_frame<Kit>> {
  explicit bare_frame(Kit& computes) : of(&computes) {}
  [[nodiscard]] Kit& kit() const { return *of; }
  [[nodiscard]] static const char* layer() { return "attention"; }
  [[nodiscard]] static std::size_t layer_index() { return 0; }
  Kit* of;
};

// Context, logarithms of sums and gradients of two sequences, by the kit's own attention or in blocks.
template <class T, class Kit>
std::vector<double> attend(Kit& kit, const model::attention_shape& shape, std::size_t length) {
  using number = belay::compute_type_t<T>;
  const std::size_t rows = 2 * length, width = shape.packed_width();
  test::numbers random(4);
  const auto as_rows = [&](std::size_t columns) {
    const auto numbers = random.make<number>(belay::extents<2>{rows, columns});
    std::vector<T> out;
    for (const number x : numbers.view().flat()) out.push_back(static_cast<T>(2 * x));
    return out;
  };
  const std::vector<T> packed = as_rows(width);
  const auto dcontext = random.make<number>(belay::extents<2>{rows, shape.query_width()});
  std::vector<T> context(rows * shape.query_width());
  std::vector<number> log_sums(2 * shape.heads * length), dpacked(rows * width, number(7));
  const model::causal_attention<T> heads(shape, length);
  std::vector<number> scratch(heads.backward_scratch());
  const belay::operand<const T> in{packed.data(), rows, width, width};
  const belay::operand<T> out{context.data(), rows, shape.query_width(), shape.query_width()};
  const belay::view<number, 3> sums{log_sums.data(), {2, shape.heads, length}};
  bare_frame<Kit> frame(kit);
  heads.forward(frame, {shape, length, in, out, sums, scratch.data()});
  heads.backward(frame, {shape, length, in, out, sums, dcontext.view(),
                         belay::operand<number>{dpacked.data(), rows, width, width}, scratch.data()});
  std::vector<double> result;
  for (const T& x : context) result.push_back(static_cast<double>(x));
  result.insert(result.end(), log_sums.begin(), log_sums.end());
  result.insert(result.end(), dpacked.begin(), dpacked.end());
  return result;
}

template <class T>
double worst_difference(const model::attention_shape& shape, std::size_t length) {
  tiled_kit by_tiles;
  belay::host_kit<> in_blocks;
  in_blocks.use_products(model::products());
  const auto got = attend<T>(by_tiles, shape, length), expected = attend<T>(in_blocks, shape, length);
  CHECK(by_tiles.calls == 2);
  double worst = 0;
  for (std::size_t i = 0; i < got.size(); ++i)
    worst = std::max(worst, std::isfinite(got[i]) ? std::abs(got[i] - expected[i]) : 1e9);
  return worst;
}

}  // namespace

TEST_CASE("an attention of tiles is that of the model: heads that share keys, lengths and sizes that are no tile's") {
  CHECK(worst_difference<double>({5, 4, 2, 6}, 67) < 1e-13);
  CHECK(worst_difference<double>({3, 1, 1, 70}, 33) < 1e-13);  // more columns than a block has
  CHECK(worst_difference<double>({5, 1, 1, 5}, 40) < 1e-13);   // of odd rows
  CHECK(worst_difference<float>({5, 2, 1, 34}, 64) < 1e-5);
  CHECK(worst_difference<float>({5, 2, 1, 132}, 35) < 1e-5);
  CHECK(worst_difference<float>({5, 3, 3, 4}, 1) < 1e-5);
  CHECK(worst_difference<belay::bf16>({5, 4, 2, 6}, 67) < 4e-3);  // whose context is rounded
}

TEST_CASE("an attention whose logarithms nobody asks for writes none") {
  constexpr std::size_t rows = 33, size = 4;
  std::vector<float> x(rows * size, 0.5F), context(rows * size);
  const belay::operand<const float> in{x.data(), rows, size, size};
  belay::attention_call<float> call{{1, 1, size, rows}, in, in, in, {context.data(), rows, size, size}};
  kernels_here by;
  CHECK(belay::cuda::queue_attention_tiles(by, call));
  CHECK(context == x);
}

namespace {

// An Api that has put in an attention of its own, and lets the second fail.
struct attending_api : fakes::device_api {
  int calls = 0;

  template <class Call>
  status_type attention(stream_type, const Call&) {
    return ++calls == 2 ? status_type{"no such head"} : status_type{};
  }
};
using attending_kit = belay::cuda::kit<attending_api>;

static_assert(belay::attention_kit<attending_kit, float> && belay::attention_kit<attending_kit, belay::bf16>);
static_assert(!belay::attention_kit<belay::cuda::kit<fakes::device_api>, float>);

}  // namespace

TEST_CASE("an Api's own attention is the kit's, and its failure a backend_error") {
  attending_api api;
  const belay::cuda::device<attending_api> gpu(api);
  attending_kit kit(gpu);
  belay::attention_call<float> call;
  kit.attention(call);
  CHECK(api.calls == 0);  // of no tokens
  call.queries.rows = 3;
  kit.attention(call);
  CHECK(api.calls == 1);
  belay::attention_gradient_call<float> gradient;
  gradient.queries.rows = 3;
  CHECK_THROWS_WITH_AS(kit.attention(gradient), doctest::Contains("attention: no such head"), belay::backend_error);
}
