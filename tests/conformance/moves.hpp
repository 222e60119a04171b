// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What every communicator's moves give: the bytes of a plain copy on one thread, into other memory and in place.
#pragma once

#include <doctest/doctest.h>

#include <cstddef>
#include <numeric>
#include <span>
#include <vector>

#include "belay/comm.hpp"
#include "conformance/reference.hpp"

namespace conformance {

// All ranks' patterns, one after the other.
template <class T>
std::vector<T> everybodys(int ranks, std::size_t part) {
  std::vector<T> out;
  for (int q = 0; q < ranks; ++q) {
    const auto theirs = pattern<T>(q, part);
    out.insert(out.end(), theirs.begin(), theirs.end());
  }
  return out;
}

template <class T, class Group>
bool broadcasts(const Group& group, std::size_t n) {
  bool ok = true;
  for (int root = 0; root < group.size(); ++root) {
    auto x = pattern<T>(group.rank(), n);
    group.broadcast(std::span(x), root);
    ok = same_bits(x, pattern<T>(root, n)) && ok;
  }
  return ok;
}

template <class T, class Group>
bool gathers_unevenly_for_all(const Group& group, std::size_t part);

template <class T, class Group>
bool gathers_for_all(const Group& group, std::size_t part) {
  const int me = group.rank(), ranks = group.size();
  const auto size = static_cast<std::size_t>(ranks), place = static_cast<std::size_t>(me);
  const auto expected = everybodys<T>(ranks, part);
  const auto in = pattern<T>(me, part);
  std::vector<T> out(part * size), placed(part * size);
  group.all_gather(in, std::span(out));
  bool ok = same_bits(out, expected);
  std::copy(in.begin(), in.end(), std::span(placed).subspan(part * place).begin());
  group.all_gather(std::span(placed).subspan(part * place, part), std::span(placed));
  ok = same_bits(placed, expected) && ok;
  if constexpr (has_uneven_parts<Group>) ok = gathers_unevenly_for_all<T>(group, part) && ok;
  return ok;
}

template <class T, class Group>
bool gathers_unevenly_for_all(const Group& group, std::size_t part) {
  const int me = group.rank(), ranks = group.size();
  const auto place = static_cast<std::size_t>(me);
  const auto counts = uneven(ranks, part);
  const auto whole = pattern<T>(99, std::accumulate(counts.begin(), counts.end(), std::size_t{0}));
  std::vector<T> x(whole.size());
  const auto first = std::accumulate(counts.begin(), counts.begin() + me, std::size_t{0});
  for (std::size_t i = first; i < first + counts[place]; ++i) x[i] = whole[i];
  group.all_gather_v(std::span(x), counts);
  return same_bits(x, whole);
}

// gather and scatter with every root, into other memory and in place; a rank that is not the root passes nothing that
// could be written, and its input is unchanged.
template <class T, class Group>
bool gathers_and_scatters(const Group& group, std::size_t part) {
  const int me = group.rank(), ranks = group.size();
  const auto size = static_cast<std::size_t>(ranks), place = static_cast<std::size_t>(me);
  const auto whole = everybodys<T>(ranks, part);
  const auto mine = pattern<T>(me, part);
  bool ok = true;
  for (int root = 0; root < ranks; ++root) {
    const bool is_root = root == me;
    const auto untouched = pattern<T>(me + 100, part * size);
    auto in = mine;
    auto out = untouched;
    group.gather(in, is_root ? std::span(out) : std::span<T>(), root);
    ok = same_bits(out, is_root ? whole : untouched) && same_bits(in, mine) && ok;
    out = untouched;
    const auto own = std::span(out).subspan(part * place, part);
    if (is_root) std::copy(mine.begin(), mine.end(), own.begin());
    group.gather(is_root ? own : std::span(in), std::span(out), root);  // the others' out is not used
    ok = same_bits(out, is_root ? whole : untouched) && same_bits(in, mine) && ok;

    std::vector<T> got(part);
    group.scatter(is_root ? std::span(whole) : std::span<const T>(), std::span(got), root);
    ok = same_bits(got, mine) && ok;
    auto placed = is_root ? whole : untouched;
    got.assign(part, T{});
    group.scatter(placed, is_root ? std::span(placed).subspan(part * place, part) : std::span(got), root);
    ok = same_bits(placed, is_root ? whole : untouched) && (is_root || same_bits(got, mine)) && ok;
  }
  return ok;
}

// Which ranks work in place.
enum class placed { nowhere, everywhere, on_odd_ranks };

template <class Group, class Run>
bool exchanges_uneven_parts(const Group& group, std::size_t part, placed where, bool in_place, const Run& run);

template <class T, class Group>
bool exchanges_parts(const Group& group, std::size_t part, placed where) {
  const int me = group.rank(), ranks = group.size();
  const bool in_place = where == placed::everywhere || (where == placed::on_odd_ranks && me % 2 == 1);
  const auto run = [&](auto count_of, auto call) {
    std::vector<std::size_t> sends, receives;
    std::vector<T> expected;
    for (int q = 0; q < ranks; ++q) {
      sends.push_back(count_of(me, q));
      receives.push_back(count_of(q, me));
      std::size_t first = 0;
      for (int to = 0; to < me; ++to) first += count_of(q, to);
      const auto theirs = pattern<T>(q, first + receives.back());
      expected.insert(expected.end(), theirs.begin() + static_cast<std::ptrdiff_t>(first), theirs.end());
    }
    const auto mine = pattern<T>(me, std::accumulate(sends.begin(), sends.end(), std::size_t{0}));
    auto in = mine;
    std::vector<T> out(expected.size());
    call(std::span(in), sends, in_place ? std::span(in) : std::span(out), receives);
    return in_place ? same_bits(in, expected) : same_bits(out, expected) && same_bits(in, mine);
  };
  const auto part_of = [&](int, int) { return part; };
  const auto call_even = [&](auto in, auto&, auto out, auto&) { group.all_to_all(in, out); };
  // What offers no uneven parts has one way for all ranks, in place or not.
  if constexpr (!has_uneven_parts<Group>) {
    return where == placed::on_odd_ranks || run(part_of, call_even);
  } else {
    return run(part_of, call_even) && exchanges_uneven_parts(group, part, where, in_place, run);
  }
}

template <class Group, class Run>
bool exchanges_uneven_parts(const Group& group, std::size_t part, placed where, bool in_place, const Run& run) {
  // Element i of what `from` sends to `to`; a pair sends each other the same number.
  const auto count = [&](int from, int to) { return static_cast<std::size_t>((from + to) % 3) * part; };
  const bool uneven_parts =
      run(count, [&](auto in, auto& sends, auto out, auto& receives) { group.all_to_all_v(in, sends, out, receives); });
  // What a pair sends each other differs: not in place.
  const bool one_sided =
      in_place || where != placed::nowhere ||
      run([&](int from, int to) { return static_cast<std::size_t>((from + 2 * to) % 4) * part; },
          [&](auto in, auto& sends, auto out, auto& receives) { group.all_to_all_v(in, sends, out, receives); });
  return uneven_parts && one_sided;
}

// Rank 1 gives all it has to rank 0, each with one buffer: what is not sent or not received has no elements at its
// start.
template <class T, class Group>
bool gives_all([[maybe_unused]] const Group& group, [[maybe_unused]] std::size_t n) {
  if constexpr (!has_uneven_parts<Group>)
    return true;
  else {
    const int me = group.rank();
    const auto ranks = static_cast<std::size_t>(group.size());
    std::vector<T> buffer = me == 1 ? pattern<T>(1, n) : std::vector<T>(n);
    std::vector<std::size_t> sends(ranks), receives(ranks);
    if (me == 1) sends[0] = n;
    if (me == 0) receives[1] = n;
    const std::span<T> all(buffer), none = all.first(0);
    group.all_to_all_v(me == 1 ? all : none, sends, me == 0 ? all : none, receives);
    return me > 1 || same_bits(buffer, pattern<T>(1, n));
  }
}

// The law for every movable type and a few sizes.
template <class Backend, class Law>
bool moves(Law law) {
  return holds_on_all<Backend>({1, 2, 3, 4}, [&](const auto& world) {
    return movable_types::holds([&]<class T>() {
      bool ok = true;
      for (std::size_t n : few_element_counts(world.size())) ok = law.template operator()<T>(world, n) && ok;
      return ok;
    });
  });
}

// Elements of buffers that no cache line divides and for which a root shares its peers' work.
constexpr std::size_t many = 90'001;

}  // namespace conformance

TEST_CASE_TEMPLATE_DEFINE("broadcast gives the root's bytes to everybody, from every root", Backend, conf_broadcast) {
  using namespace conformance;
  CHECK(moves<Backend>([]<class T>(const auto& world, std::size_t n) { return broadcasts<T>(world, n); }));
  CHECK(holds_on_all<Backend>({8}, [](const auto& world) { return broadcasts<belay::fp8_e4m3>(world, 1U << 16); }));
  CHECK(holds_on_all<Backend>({2, 3}, [](const auto& world) { return broadcasts<float>(world, many); }));
}

TEST_CASE_TEMPLATE_DEFINE("all_gather gives everybody everything, even and uneven, in place too", Backend,
                          conf_all_gather) {
  using namespace conformance;
  CHECK(moves<Backend>([]<class T>(const auto& world, std::size_t n) { return gathers_for_all<T>(world, n); }));
  CHECK(holds_on_all<Backend>({8}, [](const auto& world) { return gathers_for_all<float>(world, 1U << 13); }));
  CHECK(holds_on_all<Backend>({2, 3}, [](const auto& world) { return gathers_for_all<float>(world, many); }));
}

TEST_CASE_TEMPLATE_DEFINE("gather and scatter move between the root and everybody, in place too", Backend,
                          conf_gather) {
  using namespace conformance;
  CHECK(moves<Backend>([]<class T>(const auto& world, std::size_t n) { return gathers_and_scatters<T>(world, n); }));
  CHECK(holds_on_all<Backend>({8}, [](const auto& world) { return gathers_and_scatters<float>(world, 1U << 13); }));
  CHECK(holds_on_all<Backend>({2, 3}, [](const auto& world) { return gathers_and_scatters<float>(world, many); }));
}

TEST_CASE_TEMPLATE_DEFINE("all_to_all exchanges parts, even and uneven ones, in place too", Backend, conf_all_to_all) {
  using namespace conformance;
  for (placed where : {placed::nowhere, placed::everywhere, placed::on_odd_ranks}) {
    CHECK(
        moves<Backend>([=]<class T>(const auto& world, std::size_t n) { return exchanges_parts<T>(world, n, where); }));
    CHECK(
        holds_on_all<Backend>({8}, [=](const auto& world) { return exchanges_parts<float>(world, 1U << 12, where); }));
  }
  CHECK(holds_on_all<Backend>({2, 3}, [](const auto& world) { return gives_all<float>(world, many); }));
}
