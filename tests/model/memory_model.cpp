// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The explorer itself: the known small programs show exactly the outcomes that C++20 allows.
#include <doctest/doctest.h>

#include <functional>
#include <optional>
#include <set>
#include <string>

#include "model/explorer/study.hpp"

using enum std::memory_order;

namespace {

// Up to four threads over three words; what they saw is collected over all executions.
struct small_program {
  using thread_part = std::function<void(small_program&)>;
  model::atomic<int> x, y, z;
  model::plain<int> data{"data"};
  int seen[4] = {};
  const std::vector<thread_part>* parts;

  explicit small_program(const std::vector<thread_part>& all) : parts(&all) {}
  [[nodiscard]] model::cast_list cast() const { return {static_cast<int>(parts->size()), 0, 0}; }
  void run(int thread) { (*parts)[static_cast<std::size_t>(thread)](*this); }
};

struct outcomes {
  std::set<std::string> seen;
  model::finding found;
};

outcomes all_outcomes(std::vector<small_program::thread_part> parts, int words_seen) {
  outcomes out;
  model::execution world;
  // What was seen is itself state that the search must not merge: the last thread tells it when all others are over.
  const auto make = [&](std::optional<small_program>& program) { program.emplace(parts); };
  world.sites = nullptr;
  world.states.clear();
  world.decisions.search();
  do {
    world.begin();
    model::execution::running() = &world;
    std::optional<small_program> program;
    make(program);
    const auto how = world.run(
        program->cast(), [](void* self, int thread) { static_cast<small_program*>(self)->run(thread); }, &*program);
    if (how == model::ended::well) {
      std::string text;
      for (int i = 0; i < words_seen; ++i) text += std::to_string(program->seen[i]);
      out.seen.insert(text);
    }
    out.found.wrong |= how == model::ended::wrong;
  } while (world.decisions.advance());
  return out;
}

using p = small_program;
using texts = std::set<std::string>;

texts store_buffering(std::memory_order store, std::memory_order load) {
  return all_outcomes({[=](p& at) {
                         at.x.store(1, store);
                         at.seen[0] = at.y.load(load);
                       },
                       [=](p& at) {
                         at.y.store(1, store);
                         at.seen[1] = at.x.load(load);
                       }},
                      2)
      .seen;
}
outcomes message_passing(std::memory_order store, std::memory_order load) {
  return all_outcomes({[=](p& at) {
                         at.data.write(7);
                         at.x.store(1, store);
                       },
                       [=](p& at) {
                         at.seen[0] = at.x.load(load);
                         if (at.seen[0] == 1) at.seen[1] = at.data.read();
                       }},
                      2);
}
texts independent_reads(std::memory_order store, std::memory_order load) {
  return all_outcomes({[=](p& at) { at.x.store(1, store); }, [=](p& at) { at.y.store(1, store); },
                       [=](p& at) {
                         at.seen[0] = at.x.load(load);
                         at.seen[1] = at.y.load(load);
                       },
                       [=](p& at) {
                         at.seen[2] = at.y.load(load);
                         at.seen[3] = at.x.load(load);
                       }},
                      4)
      .seen;
}

}  // namespace

TEST_CASE("store buffering: both may miss the other's store unless all four are sequentially consistent") {
  CHECK(store_buffering(seq_cst, seq_cst) == texts{"01", "10", "11"});
  const texts weak{"00", "01", "10", "11"};
  CHECK(store_buffering(release, seq_cst) == weak);
  CHECK(store_buffering(seq_cst, acquire) == weak);
  CHECK(store_buffering(relaxed, relaxed) == weak);
}

TEST_CASE("message passing: data is safe behind release and acquire, and a race otherwise") {
  const outcomes right = message_passing(release, acquire);
  CHECK_FALSE(right.found.wrong);
  CHECK(right.seen == texts{"00", "17"});
  CHECK(message_passing(relaxed, acquire).found.wrong);
  CHECK(message_passing(release, relaxed).found.wrong);
}

TEST_CASE("independent reads of independent writes: one order for all only with sequential consistency") {
  CHECK(independent_reads(release, acquire).count("1010") == 1);
  CHECK(independent_reads(seq_cst, acquire).count("1010") == 1);
  CHECK(independent_reads(seq_cst, seq_cst).count("1010") == 0);
  CHECK(independent_reads(seq_cst, seq_cst).size() == 15);
}

TEST_CASE("coherence: one word never goes back, whatever the order") {
  const texts seen = all_outcomes({[](p& at) {
                                     at.x.store(1, relaxed);
                                     at.x.store(2, relaxed);
                                   },
                                   [](p& at) {
                                     at.seen[0] = at.x.load(relaxed);
                                     at.seen[1] = at.x.load(relaxed);
                                   }},
                                  2)
                         .seen;
  CHECK(seen == texts{"00", "01", "02", "11", "12", "22"});
}

TEST_CASE("a release sequence goes on through a relaxed addition, and not through a relaxed store") {
  const auto through = [](auto second) {
    return all_outcomes({[](p& at) {
                           at.data.write(7);
                           at.x.store(1, release);
                         },
                         second,
                         [](p& at) {
                           if (at.x.load(acquire) == 2) at.seen[0] = at.data.read();
                         }},
                        1)
        .found.wrong;
  };
  CHECK_FALSE(through([](p& at) {
    int one = 1;
    (void)at.x.compare_exchange_strong(one, 2, relaxed);
  }));
  CHECK(through([](p& at) {
    if (at.x.load(relaxed) == 1) at.x.store(2, relaxed);
  }));
}

TEST_CASE("additions are never lost") {
  const texts seen = all_outcomes({[](p& at) { at.x.fetch_add(1, relaxed); }, [](p& at) { at.x.fetch_add(1, relaxed); },
                                   [](p& at) {
                                     if (at.x.load(relaxed) == 2) at.seen[0] = 1;
                                   }},
                                  1)
                         .seen;
  CHECK(seen == texts{"0", "1"});
}

TEST_CASE("a streamed byte is safe only behind a fence and a flag") {
  const auto streamed = [](auto between) {
    return all_outcomes({[=](p& at) {
                           at.data.stream(7);
                           between();
                           at.x.store(1, release);
                         },
                         [](p& at) {
                           if (at.x.load(acquire) == 1) at.seen[0] = at.data.read();
                         }},
                        1)
        .found.wrong;
  };
  CHECK(streamed([] {}));
  CHECK_FALSE(streamed([] { model::order_streaming_stores(); }));
}

TEST_CASE("a thread that sleeps on a word that nobody wakes is a deadlock, and one that is woken is not") {
  const auto sleeps = [](bool wakes) {
    return all_outcomes({[](p& at) {
                           while (at.x.load(acquire) == 0) model::kernel::sleep(at.x, 0, 0);
                         },
                         [=](p& at) {
                           at.x.store(1, release);
                           if (wakes) model::kernel::wake_all(at.x);
                         }},
                        0)
        .found.wrong;
  };
  CHECK_FALSE(sleeps(true));
  CHECK(sleeps(false));
}
