// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "belay/backend/host/tuning/algorithm_rules.hpp"

#include <doctest/doctest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "belay/backend/host.hpp"
#include "belay/backend/host/processes.hpp"
#include "belay/comm.hpp"
#include "conformance/reference.hpp"

using belay::host::algorithm;

namespace {

// Every operation whose way differs, on ordinary and on symmetric buffers, in place and not; false: wrong somewhere.
template <class T>
bool all_ways_right(const belay::host::group& world, std::size_t n) {
  using namespace conformance;
  const int me = world.rank(), ranks = world.size();
  const auto size = static_cast<std::size_t>(ranks);
  belay::symmetric_heap heap{world, {.bytes = (2 * size * n + 64) * sizeof(T)}};
  const auto lease = [&](std::size_t count) {
    const auto slot = heap.lease(count * sizeof(T), "numbers");
    return std::span(reinterpret_cast<T*>(slot.local()), count);
  };
  const auto seen_in = lease(size * n), seen_out = lease(size * n);
  std::vector<T> in(size * n), out(size * n);
  bool ok = true;
  const auto check = [&](std::span<T> from, std::span<T> to) {
    const auto fill = [&] {
      const auto fresh = values<T>(me, size * n);
      std::copy(fresh.begin(), fresh.end(), from.begin());
      std::fill(to.begin(), to.end(), T{});
    };
    const auto total = reduced<T>(ranks, size * n, belay::sum);
    const auto right = [&](std::span<const T> got, std::size_t first) {
      ok = ok && same_bits(got, std::span<const T>(total).subspan(first, got.size()));
    };
    const std::size_t own = static_cast<std::size_t>(me) * n;
    fill();
    world.all_reduce(from, to, belay::sum);
    right(to, 0);
    world.all_reduce(from, belay::sum);  // in place
    right(from, 0);
    fill();
    world.reduce_scatter(from, to.first(n), belay::sum);
    right(to.first(n), own);
    world.reduce(from, to, belay::sum, ranks - 1);
    if (me == ranks - 1) right(to, 0);
    fill();
    world.all_gather(from.first(n), to);
    for (int q = 0; q < ranks; ++q) {
      ok = ok && same_bits<T>(to.subspan(static_cast<std::size_t>(q) * n, n), values<T>(q, n));
    }
    world.all_to_all(from, to);
    world.all_to_all(from, from);
    ok = ok && same_bits<T>(from, to);
  };
  check(seen_in, seen_out);
  check(in, out);
  check(in, seen_out);
  return ok;
}

}  // namespace

TEST_CASE("every way gives the same bits, among threads and among processes") {
  for (const algorithm selection_input : belay::host::algorithms) {
    for (int ranks : {1, 2, 3}) {
      CAPTURE(name(selection_input));
      CAPTURE(ranks);
      const auto body = [](auto& rank) {
        bool ok = true;
        for (const std::size_t n : {std::size_t{1}, std::size_t{17}, std::size_t{1001}}) {
          ok = all_ways_right<float>(rank.world(), n) && all_ways_right<belay::bf16>(rank.world(), n) && ok;
        }
        return all_ways_right<float>(rank.world(), 40'003) && ok;
      };
      belay::host::world_options options{.algorithm = selection_input};
      if (selection_input == algorithm::staged) options.staging_bytes = 64 * 1024;  // many rounds
      for (bool ok : belay::host::world{ranks, options}.run(body)) CHECK(ok);
      for (bool ok : belay::host::processes{ranks, options}.run(body)) CHECK(ok);
    }
  }
}

TEST_CASE("the way is chosen by what all ranks know, and a forced one that cannot be gone is not") {
  using belay::host::choose;
  CHECK(choose({.direct = true}, 1 << 10) == algorithm::one_shot);
  CHECK(choose({.direct = true}, 1 << 20) == algorithm::push);
  CHECK(choose({.direct = true, .in_place = true}, 1 << 10) == algorithm::push);
  CHECK(choose({.direct = false}, 1 << 20) == algorithm::staged);
  CHECK(choose({.direct = false, .cma_possible = true}, 1 << 20) == algorithm::cma);
  CHECK(choose({.direct = false, .cma_possible = true}, 1 << 10) == algorithm::staged);
  CHECK(choose({.direct = false, .cma_possible = true}, 40 << 10) == algorithm::cma);
  CHECK(choose({.direct = false, .cma_possible = true, .slices = true}, 40 << 10) == algorithm::staged);
  CHECK(choose({.direct = false, .cma_possible = true, .root_reduces = true}, 1 << 20) == algorithm::staged);
  CHECK(choose({.forced = algorithm::one_shot, .in_place = true}, 1 << 20) == algorithm::push);
  CHECK(choose({.forced = algorithm::push, .direct = false}, 1 << 20) == algorithm::staged);
  CHECK(choose({.forced = algorithm::cma, .direct = true}, 1 << 20) == algorithm::push);
}

TEST_CASE("what is small goes along where the ranks meet, unless another way is forced") {
  using belay::host::choose_small;
  using belay::host::eager_traffic;
  CHECK(choose_small(algorithm::automatic, 56, 4, 2, eager_traffic::all) == algorithm::flag_line);
  CHECK(choose_small(algorithm::automatic, 57, 1, 2, eager_traffic::all) == algorithm::eager_buffer);
  CHECK(choose_small(algorithm::automatic, 0, 64, 2, eager_traffic::all) ==
        algorithm::eager_buffer);  // no word for such an element
  CHECK(choose_small(algorithm::automatic, 1024, 4, 2, eager_traffic::all) == algorithm::eager_buffer);
  CHECK(choose_small(algorithm::automatic, 1028, 4, 2, eager_traffic::all) == algorithm::automatic);
  for (const eager_traffic which : {eager_traffic::all_in_parts, eager_traffic::root}) {
    CHECK(choose_small(algorithm::automatic, 2048, 4, 2, which) == algorithm::eager_buffer);
    CHECK(choose_small(algorithm::automatic, 2052, 4, 2, which) == algorithm::automatic);
  }
  CHECK(choose_small(algorithm::eager_buffer, 8, 4, 2, eager_traffic::all) == algorithm::eager_buffer);
  CHECK(choose_small(algorithm::eager_buffer, 2048, 4, 2, eager_traffic::all) == algorithm::eager_buffer);
  CHECK(choose_small(algorithm::push, 8, 4, 2, eager_traffic::all) == algorithm::automatic);
  CHECK(choose_small(algorithm::automatic, 512, 4, 100, eager_traffic::root) == algorithm::automatic);
}

TEST_CASE("a way is named in the environment; a name that is none lists them") {
  ::setenv("BELAY_ALGORITHM", "pull", 1);
  CHECK(belay::host::algorithm_of_environment() == algorithm::pull);
  ::setenv("BELAY_ALGORITHM", "ring", 1);
  CHECK_THROWS_WITH_AS(belay::host::world{1},
                       doctest::Contains("there are automatic, flag_line, eager_buffer, one_shot"), belay::input_error);
  // Names from before 0.3.
  for (const auto& [old, now] : {std::pair("line", "flag_line"), {"page", "eager_buffer"}, {"kernel_copy", "cma"}}) {
    ::setenv("BELAY_ALGORITHM", old, 1);
    const std::string told = "the algorithm " + std::string(old) + " is called " + now + " now";
    CHECK_THROWS_WITH_AS(belay::host::world{1}, doctest::Contains(told.c_str()), belay::input_error);
  }
  ::unsetenv("BELAY_ALGORITHM");
}
