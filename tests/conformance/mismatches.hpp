// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Calls that do not fit together, made by the hundred: one rank does something else than the others, in every way in
// which an operation can differ. Every rank must get the error, before a byte of any rank's buffers has changed. And
// calls that do fit, from other lines, in place or not, must never be taken for a mismatch.
#pragma once

#include <doctest/doctest.h>
#include <sched.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "conformance/communicator_faults.hpp"
#include "conformance/odd_calls.hpp"
#include "test_length.hpp"

namespace conformance {

/// The call of one rank, and that of all others instead.
struct mismatch_case {
  std::string name;
  std::vector<odd_call> usual, odd;
  // The deadline: nothing is compared, because the calls never match.
  enum class end { comparison, deadline } how = end::comparison;
};

class mismatch_cases {
 public:
  [[nodiscard]] static std::vector<mismatch_case> all() {
    mismatch_cases made;
    made.operations();
    made.arguments();
    made.sequences();
    made.groups();
    made.pairs();
    return std::move(made.cases_);
  }

 private:
  using end = mismatch_case::end;

  void add(const std::string& name, const odd_call& usual, const odd_call& odd, end how = end::comparison) {
    cases_.push_back({name + " of " + conformance::name(usual.what), {usual}, {odd}, how});
  }

  // Small ones carry their data with them, large ones do not.
  static constexpr std::size_t small = 2, large = 300;

  void operations() {
    for (int a = 0; a < call_kinds; ++a) {
      for (int b = 0; b < call_kinds; ++b) {
        if (a == b) continue;
        const std::size_t n = (a + b) % 2 == 0 ? small : large;
        add("operation", {.what = call_kind{a}, .n = n}, {.what = call_kind{b}, .n = n});
      }
    }
  }

  void arguments() {
    for (int a = 1; a < call_kinds; ++a) {  // a barrier has none
      const call_kind what{a};
      for (way how : {way::blocking, way::started}) {
        for (auto [n, other] : {std::pair{small, small + 1}, {large, large - 1}, {small, large}, {large, small}}) {
          add("count", {.what = what, .n = n, .how = how}, {.what = what, .n = other, .how = how});
        }
        for (std::size_t n : {small, large}) {
          add("type", {.what = what, .n = n, .how = how}, {.what = what, .n = n, .type = word::i32, .how = how});
          add("size of type", {.what = what, .n = n, .how = how},
              {.what = what, .n = n, .type = word::f64, .how = how});
          if (has_root(what))
            add("root", {.what = what, .n = n, .how = how}, {.what = what, .n = n, .root = 1, .how = how});
          if (has_counts(what)) {
            add("count vector", {.what = what, .n = n, .how = how}, {.what = what, .n = n, .skew = 1, .how = how});
          }
          if (!reduces(what)) continue;
          for (redop other : {redop::product, redop::maximum, redop::average}) {
            add("reduction", {.what = what, .n = n, .how = how}, {.what = what, .n = n, .reduce = other, .how = how});
          }
        }
      }
      add("count of 0", {.what = what, .n = large}, {.what = what, .n = 0});
      if (has_two_buffers(what)) {
        for (std::size_t n : {small, large}) {
          add("alias", {.what = what, .n = n}, {.what = what, .n = n, .alias = aliasing::overlapping});
        }
      }
    }
  }

  // Two calls, of which one is left out, made twice or made first.
  void sequences() {
    for (int a = 0; a < call_kinds; ++a) {
      const odd_call first{.what = call_kind{a}, .n = large},
          second{.what = call_kind{(a + 1) % call_kinds}, .n = small};
      const auto sequence = [&](const char* name, std::vector<odd_call> odd) {
        cases_.push_back({std::string(name) + " of " + conformance::name(first.what),
                          {first, second},
                          std::move(odd),
                          end::comparison});
      };
      sequence("order", {second, first});
      sequence("missing call", {second});
      sequence("extra call", {first, first, second});
    }
  }

  // The same call on another group: of the same ranks, or of fewer.
  void groups() {
    for (call_kind what : {call_kind::barrier, call_kind::all_reduce, call_kind::broadcast, call_kind::all_to_all_v}) {
      add("group of the same ranks", {.what = what, .n = small, .group = 1}, {.what = what, .n = small, .group = 2},
          end::deadline);
      add("group of two of the ranks", {.what = what, .n = large}, {.what = what, .n = large, .group = 3},
          end::deadline);
      const odd_call one{.what = what, .n = large, .group = 1}, other{.what = what, .n = large, .group = 2};
      cases_.push_back(
          {std::string("order of groups of ") + conformance::name(what), {one, other}, {other, one}, end::deadline});
      for (std::size_t n : {small, large}) {
        add("started, not called", {.what = what, .n = n}, {.what = what, .n = n, .how = way::started});
        add("called, not started", {.what = what, .n = n, .how = way::started}, {.what = what, .n = n});
      }
    }
  }

  // Rank 0 sends to the odd one.
  void pairs() {
    for (way how : {way::blocking, way::started}) {
      for (std::size_t n : {small, large, std::size_t{1200}}) {
        const odd_call usual{.what = call_kind::pair, .n = n, .how = how};
        odd_call longer = usual, shorter = usual, tag = usual, direction = usual;
        longer.n = n + 1;
        shorter.n = n - 1;
        tag.tag = 1;
        direction.root = 1;
        add("pair: more bytes expected", usual, longer);
        add("pair: fewer bytes expected", usual, shorter);
        add("pair: tag", usual, tag);
        if (n == large) {
          add("pair: both send", usual, direction, end::deadline);
          add("pair: no receive", usual, {.what = call_kind::barrier, .how = how}, end::deadline);
        }
      }
    }
  }

  std::vector<mismatch_case> cases_;
};

/// The part of one rank; true when it was told as it should be and its buffers are what they were.
template <class Rank>
bool is_told(Rank& rank, const mismatch_case& each, int odd_rank) {
  const bool odd = rank.number() == odd_rank;
  const call_groups groups(rank, odd_rank);
  call_memory memory(rank.number());
  const bool by_deadline = each.how == mismatch_case::end::deadline;
  // That a rank is slow is no part of the case. One that does not run until the deadline has its last call here.
  if (by_deadline) rank.world().within(std::chrono::minutes(1)).barrier(belay::where{"start.cpp", "", 1});
  const auto what = failure_of([&] {
    int line = 1;
    for (const odd_call& next : odd ? each.odd : each.usual) {
      memory.reset();
      const belay::where at{odd ? "odd.cpp" : "usual.cpp", "", line++};
      try {
        perform(groups, next, memory, odd_rank, at);
      } catch (const belay::usage_error&) {
        if (next.alias != aliasing::overlapping) throw;
      }
    }
    memory.reset();
    rank.world().barrier(belay::where{odd ? "odd.cpp" : "usual.cpp", "", 99});
  });
  bool ok = memory.untouched();
  for (int i = 0; i < 20; ++i) ::sched_yield();  // nor does any rank write now
  ok = ok && memory.untouched();
  const auto again = failure_of([&] { rank.world().barrier(); });
  ok = ok && again.message == what.message && again.fault == what.fault && again.culprits == what.culprits;
  if (by_deadline) {
    // The rank whose deadline passes first tells where the others are instead.
    return ok && what.fault == belay::comm_fault::timeout && !what.culprits.empty() &&
           what.message.find(".cpp:") != std::string::npos;
  }
  const bool sites =
      what.message.find("odd.cpp:") != std::string::npos && what.message.find("usual.cpp:") != std::string::npos;
  return ok && what.fault == belay::comm_fault::mismatch && names(what, odd_rank) && sites;
}

}  // namespace conformance

TEST_CASE_TEMPLATE_DEFINE("whatever differs, all ranks are told before any byte has changed", Backend,
                          conf_mismatches) {
  using namespace conformance;
  const std::vector<mismatch_case> cases = mismatch_cases::all();
  std::size_t runs = 0, caught = 0;
  for (int ranks : {2, 3, 5}) {
    for (std::size_t which = 0; which < cases.size(); ++which) {
      const mismatch_case& each = cases[which];
      if (only_a_sample() && (which + static_cast<std::size_t>(ranks)) % 4 != 0) continue;
      if (ranks == 2 && each.odd.front().group == 3) continue;  // those two are all
      CAPTURE(ranks);
      CAPTURE(each.name);
      const int odd_rank = which % 3 == 0 ? 1 : ranks - 1;
      const bool by_deadline = each.how == mismatch_case::end::deadline;
      const std::chrono::milliseconds timeout(by_deadline ? 100 : 120'000);
      const auto told =
          Backend::run(ranks, timeout, [each, odd_rank](auto& rank) { return is_told(rank, each, odd_rank); });
      if (told.empty()) continue;  // a backend that was launched with fewer
      const bool by_all = all(told);
      CHECK(by_all);
      caught += by_all;
      ++runs;
    }
  }
  MESSAGE(cases.size() << " mismatch cases in " << runs << " worlds; all ranks were told in " << caught);
  CHECK(cases.size() >= 150);
}

TEST_CASE_TEMPLATE_DEFINE("calls that fit are never a mismatch, wherever they are made", Backend, conf_matches) {
  using namespace conformance;
  std::size_t calls = 0;
  for (auto [ranks, most] : {std::pair{2, 60'000}, {3, 35'000}, {5, 5'000}}) {
    CAPTURE(ranks);
    const int count = only_a_sample() ? most / 10 : most;
    CHECK(all(Backend::run(ranks, [count](auto& rank) {
      const call_groups groups(rank, rank.size() - 1);
      call_memory memory(rank.number());
      std::uint64_t seed = 12345;
      const auto draw = [&](std::uint64_t below) {
        seed = seed * 6364136223846793005ULL + 1442695040888963407ULL;
        return (seed >> 33) % below;
      };
      const std::size_t sizes[] = {0, 1, 2, 3, 7, 14, 15, 64, 300};
      const auto failed = failure_of([&] {
        for (int k = 0; k < count; ++k) {
          odd_call next;
          next.what = call_kind{static_cast<int>(draw(call_kinds + 1))};  // pairs too
          next.n = sizes[draw(9)];
          next.type = word{static_cast<int>(draw(3))};
          next.reduce = redop{static_cast<int>(draw(4))};
          next.root =
              next.what == call_kind::pair ? 0 : static_cast<int>(draw(static_cast<std::uint64_t>(rank.size())));
          next.skew = next.n > 0 ? draw(2) : 0;
          next.how = draw(8) == 0 ? way::started : way::blocking;
          next.group = static_cast<int>(draw(3));
          next.alias = (rank.number() + k) % 2 == 0 ? aliasing::in_place : aliasing::apart;
          perform(groups, next, memory, rank.size() - 1,
                  belay::where{rank.number() == 0 ? "a.cpp" : "b.cpp", "", k % 90 + rank.number()});
        }
      });
      return failed.fault == belay::comm_fault::revoked;  // nothing failed
    })));
    calls += static_cast<std::size_t>(count);
  }
  MESSAGE(calls << " matching calls from different lines");
  CHECK(calls >= (only_a_sample() ? 10'000 : 100'000));
}
