// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A rank's calls are of one thread at a time, of its own process, while its run lasts. Any other caller gets a named
// error, and no rank is harmed.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "belay/comm.hpp"
#include "unit/backend/forked.hpp"

namespace conformance {

inline constexpr bool checks_calls = belay::checked(belay::check_level::local);

inline bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// What `work` was refused with; empty where it was not.
template <class Work>
std::string slip_of(Work work) {
  try {
    work();
  } catch (const belay::usage_error& error) {
    return error.what();
  }
  return {};
}

// The same, where a release build may say it as an error of the world.
template <class Work>
std::string refusal_of(Work work) {
  try {
    work();
  } catch (const belay::error& error) {
    return error.what();
  }
  return {};
}

template <class Group>
bool adds_up(const Group& group) {
  std::vector<int> ones(1000, 1);
  group.all_reduce(std::span(ones), belay::sum);
  return std::count(ones.begin(), ones.end(), group.size()) == 1000;
}

inline belay::where line(int number) { return {"user.cpp", "", number}; }

}  // namespace conformance

TEST_CASE_TEMPLATE_DEFINE("of two threads in one group the later is told of both lines, and nobody is harmed", Backend,
                          conf_two_threads) {
  using namespace conformance;
  if (!checks_calls) return;
  for (int ranks : {2, 3}) {
    typename Backend::word peers_may_come(ranks);
    for (bool good : Backend::run(ranks, [&](auto& rank) {
           const auto& world = rank.world();
           if (rank.number() != 0) {
             peers_may_come.wait();
             world.barrier();
             return adds_up(world);
           }
           // The first caller waits for the peers, which wait until the other one has been refused.
           std::string told[2];
           const auto call = [&](int which) {
             told[which] = slip_of([&] { world.barrier(line(which + 1)); });
             if (!told[which].empty()) peers_may_come.tell();
           };
           std::thread first(call, 0), second(call, 1);
           first.join();
           second.join();
           const int later = told[0].empty() ? 1 : 0;
           return told[1 - later].empty() && has(told[later], line(later + 1).text() + ": ") &&
                  has(told[later], "in the barrier called at " + line(2 - later).text()) && adds_up(world);
         }))
      CHECK(good);
  }
}

TEST_CASE_TEMPLATE_DEFINE("nothing of a rank is called beside a call of it: groups, starts, waits, exchanges, leases",
                          Backend, conf_beside_a_call) {
  using namespace conformance;
  if (!checks_calls) return;
  constexpr int ranks = 2;
  for (int which = 0; which < 6; ++which) {
    CAPTURE(which);
    typename Backend::word peers_may_come(ranks);
    for (bool good : Backend::run(ranks, [&](auto& rank) {
           const auto& world = rank.world();
           belay::symmetric_heap heap(world, {.bytes = 1 << 16});
           const auto alone = rank.group(std::vector<int>{rank.number()});
           std::vector<belay::pending> started(1), more;
           started[0] = alone.start_barrier();
           if (rank.number() != 0) {
             peers_may_come.wait();
             world.barrier();
             std::move(started[0]).wait();
             return adds_up(world);
           }
           // Tries until the other thread is in its call, where that stays until this one was refused.
           std::string told;
           const auto attempt = [&] {
             switch (which) {
               case 0: static_cast<void>(rank.group(std::vector<int>{0}, line(2))); break;
               case 1: alone.exchange({}, line(2)); break;
               case 2: more.push_back(alone.start_barrier(line(2))); break;
               case 3: heap.release(heap.lease(64, "one", line(2)), line(2)); break;
               case 4: alone.barrier(line(2)); break;
               default:
                 if (started[0].open()) std::move(started[0]).wait(line(2));
                 started[0] = alone.start_barrier(line(2));
             }
           };
           std::thread beside([&] {
             while (told.empty()) told = slip_of(attempt);
             peers_may_come.tell();
           });
           while (!slip_of([&] { world.barrier(line(1)); }).empty()) {
           }
           beside.join();
           if (started[0].open()) std::move(started[0]).wait();
           for (belay::pending& each : more) std::move(each).wait();
           return has(told, line(2).text()) &&
                  has(told, "another thread of rank 0 is in the barrier called at user.cpp:1") && adds_up(world);
         }))
      CHECK(good);
  }
}

TEST_CASE_TEMPLATE_DEFINE("a forked child of a rank is told that it is none, and the run goes on", Backend,
                          conf_child) {
  using namespace conformance;
  for (int ranks : {1, 3}) {
    for (bool good : Backend::run(ranks, [&](auto& rank) {
           const auto& world = rank.world();
           belay::symmetric_heap heap(world, {.bytes = 1 << 16});
           auto started = world.start_barrier();
           const auto is_child = [](const std::string& told) { return has(told, "forked child of rank"); };
           const int child = reaped(forked([&] {
             const std::vector<int> alone{rank.number()};
             const bool cold = is_child(slip_of([&] { static_cast<void>(rank.group(alone)); })) &&
                               is_child(slip_of([&] { world.start_barrier().wait(); })) &&
                               is_child(slip_of([&] { std::move(started).wait(); }));
             if (!cold) return 1;
             if constexpr (checks_calls) {
               float one = 1;
               const bool hot = is_child(slip_of([&] { world.barrier(); })) &&
                                is_child(slip_of([&] { world.all_reduce(std::span(&one, 1), belay::sum); })) &&
                                is_child(slip_of([&] { world.exchange({}); })) &&
                                is_child(slip_of([&] { heap.synchronize(); })) &&
                                is_child(slip_of([&] { static_cast<void>(heap.lease(64, "one")); }));
               if (!hot) return 2;
             }
             return 0;
           }));
           std::move(started).wait();
           return child == 0 && adds_up(world);
         }))
      CHECK(good);
  }
}

TEST_CASE_TEMPLATE_DEFINE("a forked child that leaves the body, or exits, does not leave it for its rank", Backend,
                          conf_child_ends) {
  using namespace conformance;
  constexpr int ranks = 3;
  for (int how = 0; how < 3; ++how) {
    CAPTURE(how);
    for (bool good : Backend::run(ranks, [&](auto& rank) {
           using group_type = typename std::remove_reference_t<decltype(rank)>::group_type;
           // One handle for each thread that may be a rank: destroyed by exit.
           static std::optional<group_type> at_exit[ranks];
           static std::optional<belay::symmetric_heap<group_type>> heaps[ranks];
           auto& mine = at_exit[static_cast<std::size_t>(rank.number())];
           auto& heap = heaps[static_cast<std::size_t>(rank.number())];
           mine.emplace(rank.world());
           heap.emplace(rank.world(), belay::symmetric_heap_options{.bytes = 4096});
           std::vector<belay::pending> started(1);
           started[0] = rank.world().start_barrier();
           std::fflush(nullptr);
           const pid_t child = ::fork();
           if (child == 0) {
             std::freopen("/dev/null", "w", stderr);
             ::alarm(30);
             if (how == 0) return false;
             if (how == 1) throw std::runtime_error("of the child alone");
             if constexpr (Backend::child_may_exit) std::exit(1);
             ::_exit(1);
           }
           std::move(started[0]).wait();
           const bool ended = reaped(child) == 1;
           const bool works = adds_up(*mine);
           heap.reset();
           mine.reset();
           return ended && works;
         }))
      CHECK(good);
  }
}

TEST_CASE_TEMPLATE_DEFINE("what outlives its run says so when it is used, and goes without harm", Backend, conf_after) {
  using namespace conformance;
  using group_type = typename Backend::rank_type::group_type;
  for (int ranks : {1, 3}) {
    std::vector<std::optional<group_type>> groups(static_cast<std::size_t>(ranks));
    std::vector<std::unique_ptr<belay::symmetric_heap<group_type>>> heaps(groups.size());
    std::vector<belay::pending> waited(groups.size()), dropped(groups.size());
    const std::vector<bool> good = Backend::run(ranks, [&](auto& rank) {
      const auto me = static_cast<std::size_t>(rank.number());
      groups[me].emplace(rank.world());
      const belay::symmetric_heap_options options{.bytes = 4096};
      heaps[me] = std::make_unique<belay::symmetric_heap<group_type>>(rank.world(), options);
      waited[me] = rank.world().start_barrier();
      dropped[me] = rank.world().start_barrier();
      return true;
    });
    for (std::size_t q = 0; q < groups.size() && !good.empty(); ++q) {
      if (!groups[q]) continue;  // of another process
      CAPTURE(q);
      float one = 1;
      const auto is_over = [](const std::string& told) { return has(told, "is over"); };
      CHECK(is_over(refusal_of([&] { groups[q]->barrier(); })));
      CHECK(is_over(refusal_of([&] { groups[q]->all_reduce(std::span(&one, 1), belay::sum); })));
      CHECK(is_over(refusal_of([&] { groups[q]->exchange({}); })));
      CHECK(is_over(slip_of([&] { groups[q]->start_barrier().wait(); })));
      CHECK(is_over(slip_of([&] { std::move(waited[q]).wait(); })));
      CHECK(is_over(refusal_of([&] { heaps[q]->synchronize(); })));
      if constexpr (checks_calls) CHECK(is_over(slip_of([&] { static_cast<void>(heaps[q]->lease(64, "one")); })));
    }
  }
}
