// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What every communicator's reductions give: the numbers of a plain loop on one thread, bit for bit.
#pragma once

#include <doctest/doctest.h>

#include <cstddef>
#include <numeric>
#include <span>
#include <vector>

#include "belay/comm.hpp"
#include "conformance/reference.hpp"

namespace conformance {

// all_reduce and reduce with every root: only the root's buffer changes.
template <class T, class Op, class Group>
bool reduces(const Group& group, std::size_t n, Op op) {
  bool ok = all_reduce_is_right<T>(group, n, op);
  const auto mine = values<T>(group.rank(), n);
  for (int root = 0; root < group.size(); ++root) {
    auto x = mine;
    group.reduce(std::span(x), op, root);
    ok = same_bits(x, root == group.rank() ? reduced<T>(group.size(), n, op) : mine) && ok;
  }
  return ok;
}

template <class T, class Op, class Group>
bool reduces_and_scatters_unevenly(const Group& group, std::size_t part, Op op);

// reduce_scatter into another buffer and in place, reduce_scatter_v: nothing changes but this rank's part.
template <class T, class Op, class Group>
bool reduces_and_scatters(const Group& group, std::size_t part, Op op) {
  const int me = group.rank(), ranks = group.size();
  const auto size = static_cast<std::size_t>(ranks), place = static_cast<std::size_t>(me);
  const auto in = values<T>(me, part * size);
  const auto whole = reduced<T>(ranks, in.size(), op);
  const auto mine = std::span<const T>(whole).subspan(part * place, part);
  std::vector<T> out(part);
  group.reduce_scatter(in, std::span(out), op);
  bool ok = same_bits<T>(out, mine);
  auto placed = in;
  group.reduce_scatter(placed, std::span(placed).subspan(part * place, part), op);
  ok = same_bits_with(placed, in, part * place, mine) && ok;
  if constexpr (has_uneven_parts<Group>) ok = reduces_and_scatters_unevenly<T>(group, part, op) && ok;
  return ok;
}

template <class T, class Op, class Group>
bool reduces_and_scatters_unevenly(const Group& group, std::size_t part, Op op) {
  const int me = group.rank(), ranks = group.size();
  const auto place = static_cast<std::size_t>(me);
  const auto counts = uneven(ranks, part);
  const auto total = std::accumulate(counts.begin(), counts.end(), std::size_t{0});
  const auto first = std::accumulate(counts.begin(), counts.begin() + me, std::size_t{0});
  const auto before = values<T>(me, total);
  const auto expected = reduced<T>(ranks, total, op);
  auto x = before;
  group.reduce_scatter_v(std::span(x), counts, op);
  const bool ok = same_bits_with(x, before, first, std::span<const T>(expected).subspan(first, counts[place]));
  group.all_gather_v(std::span(x), counts);  // completes what reduce_scatter_v left
  return same_bits(x, expected) && ok;
}

template <class T, class Group, class Law>
bool for_every_reduction(const Group& group, Law law) {
  bool ok = true;
  for (std::size_t n : few_element_counts(group.size())) {
    ok = law.template operator()<T>(n, belay::sum) && ok;
    ok = law.template operator()<T>(n, belay::product) && ok;
    ok = law.template operator()<T>(n, belay::minimum) && ok;
    ok = law.template operator()<T>(n, belay::maximum) && ok;
    ok = law.template operator()<T>(n, belay::average) && ok;
  }
  return ok;
}

}  // namespace conformance

TEST_CASE("the values of the laws tell another order, another rounding and another width") {
  using namespace conformance;
  const std::size_t n = 1537;
  const auto differs = [&]<class T, class Op>(T, Op op, auto wrong) {
    std::vector<T> out(n), x(3);
    for (std::size_t i = 0; i < n; ++i) {
      for (std::size_t q = 0; q < 3; ++q) x[q] = value<T>(static_cast<int>(q), i);
      out[i] = static_cast<T>(wrong(x));
    }
    return !same_bits(out, reduced<T>(3, n, op));
  };
  using belay::bf16;
  CHECK(differs(0.0F, belay::sum, [](auto& x) { return x[2] + x[1] + x[0]; }));
  CHECK(differs(0.0F, belay::product, [](auto& x) { return x[2] * x[1] * x[0]; }));
  CHECK(differs(0.0F, belay::sum, [](auto& x) { return double{x[0]} + x[1] + x[2]; }));
  CHECK(differs(0.0F, belay::average, [](auto& x) { return (x[0] + x[1] + x[2]) * (1.0F / 3); }));
  CHECK(differs(0.0F, belay::average, [](auto& x) { return x[0] / 3 + x[1] / 3 + x[2] / 3; }));
  CHECK(differs(bf16(), belay::sum, [](auto& x) { return float(bf16(float(x[0]) + float(x[1]))) + float(x[2]); }));
  CHECK(differs(bf16(), belay::average,
                [](auto& x) { return float(bf16(float(x[0]) + float(x[1]) + float(x[2]))) / 3; }));
  CHECK(differs(std::int8_t{}, belay::average, [](auto& x) { return (x[0] + x[1] + x[2]) / 3; }));
  CHECK(differs(std::int32_t{}, belay::average, [](auto& x) {
    const auto total = static_cast<std::int32_t>(std::uint32_t(x[0]) + std::uint32_t(x[1]) + std::uint32_t(x[2]));
    return total / 3 - (total % 3 < 0 ? 1 : 0);  // rounded down, not towards zero
  }));
}

TEST_CASE_TEMPLATE_DEFINE("all_reduce and reduce give the numbers of one thread, for every type, size and reduction",
                          Backend, conf_reduce) {
  using namespace conformance;
  CHECK(holds_on_all<Backend>({1, 2, 3, 4}, [](const auto& world) {
    return reducible_types::holds([&]<class T>() {
      return for_every_reduction<T>(world, [&]<class U>(std::size_t n, auto op) { return reduces<U>(world, n, op); });
    });
  }));
  // Longer than one block of the arithmetic for every rank, and more ranks than cores.
  CHECK(holds_on_all<Backend>({3, 8}, [](const auto& world) {
    return all_reduce_is_right<float>(world, 1U << 16, belay::sum) &&
           all_reduce_is_right<std::uint64_t>(world, 1001, belay::average);
  }));
}

TEST_CASE_TEMPLATE_DEFINE("reduce_scatter gives the slice of a reduction, in place too, and all_gather_v completes it",
                          Backend, conf_reduce_scatter) {
  using namespace conformance;
  CHECK(holds_on_all<Backend>({1, 2, 3, 4}, [](const auto& world) {
    return reducible_types::holds([&]<class T>() {
      return for_every_reduction<T>(
          world, [&]<class U>(std::size_t n, auto op) { return reduces_and_scatters<U>(world, n, op); });
    });
  }));
  CHECK(holds_on_all<Backend>({8},
                              [](const auto& world) { return reduces_and_scatters<float>(world, 8192, belay::sum); }));
}

TEST_CASE_TEMPLATE_DEFINE("minimum and maximum of a NaN are a NaN, whichever rank brings it", Backend, conf_nan) {
  using namespace conformance;
  CHECK(holds_on_all<Backend>({1, 2, 3, 4}, [](const auto& world) {
    return floating_types::holds([&]<class T>() {
      // Rank q has one at index q; elsewhere the reduction is what it would be.
      const std::size_t n = 67;
      const auto is_nan = [](T x) { return !(x == x); };
      const auto law = [&](auto op) {
        auto x = values<T>(world.rank(), n);
        x[static_cast<std::size_t>(world.rank())] = static_cast<T>(std::numeric_limits<float>::quiet_NaN());
        world.all_reduce(std::span(x), op);
        const auto expected = reduced<T>(world.size(), n, op);
        bool ok = true;
        for (std::size_t i = 0; i < n; ++i) {
          const bool payloads = i < static_cast<std::size_t>(world.size());
          ok = ok && is_nan(x[i]) == payloads && (payloads || x[i] == expected[i]);
        }
        return ok;
      };
      const bool smallest = law(belay::minimum), largest = law(belay::maximum);
      return smallest && largest;
    });
  }));
}

TEST_CASE_TEMPLATE_DEFINE("integers wrap, and the quotient of an average is truncated", Backend, conf_integers) {
  using namespace conformance;
  CHECK(all(Backend::run(2, [](auto& rank) {
    const auto& world = rank.world();
    const bool first = world.rank() == 0;
    const auto of = [&](auto a, auto b, auto op) {
      auto x = first ? a : b;
      world.all_reduce(std::span(&x, 1), op);
      return x;
    };
    using i8 = std::int8_t;
    using u8 = std::uint8_t;
    return of(i8{127}, i8{1}, belay::sum) == -128 && of(i8{127}, i8{1}, belay::average) == -64 &&
           of(i8{-3}, i8{0}, belay::average) == -1 && of(i8{3}, i8{0}, belay::average) == 1 &&
           of(u8{200}, u8{100}, belay::average) == 22 && of(u8{255}, u8{255}, belay::product) == 1 &&
           of(i8{-128}, i8{-1}, belay::product) == -128 && of(i8{-128}, i8{127}, belay::minimum) == -128 &&
           of(std::int32_t{65536}, std::int32_t{65537}, belay::product) == 65536 &&
           of(std::int64_t{-7}, std::int64_t{0}, belay::average) == -3;
  })));
}
