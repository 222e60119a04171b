// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What a kit's products need beside their operands is planned, and given to the kit of the run.
#include <doctest/doctest.h>

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "belay/backend/host.hpp"
#include "belay/belay.hpp"

namespace {

using belay::bf16;

struct seen {
  std::optional<std::size_t> planned;  // the workspace's row
  std::size_t peak = 0, plan = 0, given = 0;
  std::vector<float> product;
};

// Multiplies two matrices of T in the memory of a run.
template <class T>
seen multiply(const belay::stream_choice& streams) {
  seen out;
  belay::launch(belay::host::world{1},
                [&](auto&, auto& run) {
                  constexpr std::size_t n = 40;
                  const std::span<T> a = run.template lease<T>(belay::tier::device, n * n, "a");
                  const std::span<T> c = run.template lease<T>(belay::tier::device, n * n, "c");
                  if (!run.rehearsing())
                    for (std::size_t i = 0; i < a.size(); ++i) a[i] = static_cast<T>(static_cast<float>(i % 7) - 3.0F);
                  auto& kit = run.engine().kit();
                  const belay::operand<const T> factor{a.data(), n, n, n};
                  kit.product(belay::product_call<T>{{c.data(), n, n, n}, factor, factor});
                  run.engine().compute().synchronize();
                  if (run.rehearsing()) return;
                  for (T each : c) out.product.push_back(static_cast<float>(each));
                  for (const belay::plan_item& item : run.planned().items())
                    if (std::string(item.purpose) == "workspace of products") out.planned = item.bytes;
                  out.peak = run.meters()[belay::tier::device].peak_bytes();
                  out.plan = run.planned().peak_bytes(belay::tier::device);
                  out.given = kit.workspace_bytes();
                },
                {.streams = streams});
  return out;
}

}  // namespace

TEST_CASE("panels of bf16 products are in the plan, to the byte, and a run of floats has none") {
  constexpr std::size_t panels = belay::kernel::mixed_tile::bytes;
  const belay::stream_choice at_once, queued{belay::stream_policy::queued, 0};
  for (const belay::stream_choice& how : {at_once, queued}) {
    const seen narrow = multiply<bf16>(how), wide = multiply<float>(how);
    CHECK(narrow.planned == belay::leased_size(panels));
    CHECK(narrow.given == panels);
    CHECK(narrow.peak == narrow.plan);
    CHECK_FALSE(wide.planned);
    CHECK(wide.given == 0);
    CHECK(wide.peak == wide.plan);
    REQUIRE(narrow.product.size() == wide.product.size());
    for (std::size_t i = 0; i < wide.product.size(); ++i)
      CHECK(narrow.product[i] == doctest::Approx(wide.product[i]).epsilon(0x1p-8));
  }
}
