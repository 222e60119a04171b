// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The study of one protocol: all schedules of it within a bound, some by chance, and every seeded mistake. A mistake
// that no schedule shows must be named as harmless, with the reason.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "model/explorer/execution.hpp"
#include "model/explorer/types.hpp"
#include "test_length.hpp"

namespace model {

struct bounds {
  int deviations = execution::unlimited;      // preemptions, and loads of a value that is not the last
  std::uint64_t by_chance = 2000;             // executions
  std::uint64_t most_executions = 3'000'000;  // more is a test that was planned badly
};

/// So many deviations; one more in a soak.
[[nodiscard]] inline bounds bound_of(int deviations) {
  if (!is_soak()) return {.deviations = deviations};
  return {.deviations = deviations + 1, .by_chance = 500'000, .most_executions = 1'000'000'000};
}

struct finding {
  bool wrong = false;
  bool complete = true;
  std::string why;
  std::string trace;
  std::uint64_t executions = 0;
  std::uint64_t by_chance = 0;
  std::uint64_t states = 0;
};

/// A scenario is made anew for each execution: `cast()`, `run(thread)`, and `check()` after it has ended well.
template <class Scenario, class Make>
[[nodiscard]] finding explore(execution& world, Make make, const bounds& within, const mutant& mistake,
                              std::vector<site>* sites) {
  finding out;
  world.mistake = mistake;
  world.bound = within.deviations;
  world.sites = sites;
  const auto once = [&] {
    world.begin();
    execution::running() = &world;
    std::optional<Scenario> scenario;
    make(scenario);
    ended how = world.run(
        scenario->cast(), [](void* self, int thread) { static_cast<Scenario*>(self)->run(thread); }, &*scenario);
    if (how == ended::well) {
      scenario->check();
      how = world.how();
    }
    if (how == ended::wrong) {
      out.wrong = true;
      out.why = world.failure();
      out.trace = world.trace();
    }
    return how;
  };
  world.states.clear();
  world.decisions.search();
  do {
    (void)once();
    ++out.executions;
    if (out.executions == within.most_executions) out.complete = false;
  } while (!out.wrong && out.complete && world.decisions.advance());
  out.states = world.states.size();
  for (; out.by_chance < within.by_chance && !out.wrong; ++out.by_chance) {
    world.decisions.gamble(out.by_chance + 1);
    (void)once();
  }
  execution::running() = nullptr;
  return out;
}

/// A mistake that changes nothing anybody can see: the source line it is on, with the one before it (a part of them),
/// what it does, and why.
struct harmless {
  const char* code;
  const char* change;  // a part of the mutant's text
  const char* reason;
};

class study {
 public:
  explicit study(std::string name) : name_(std::move(name)) {}

  /// Must hold in all schedules within the bound. The first one also gives the places where mistakes are seeded.
  template <class Scenario>
  void holds(const std::string& what, int ranks, int rounds, const bounds& within,
             std::function<void(std::optional<Scenario>&)> make) {
    const auto start = std::chrono::steady_clock::now();
    const finding found = explore<Scenario>(world_, make, within, {}, &sites_);
    INFO(name_, ", ", what, ", ", ranks, " ranks: ", found.why, "\n", found.trace);
    CHECK_FALSE(found.wrong);
    CHECK(found.complete);
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    const std::string bound = within.deviations == execution::unlimited ? "all" : std::to_string(within.deviations);
    std::printf("| %-14s | %-34s | %5d | %6d | %11s | %9llu | %10llu | %9llu | %5.1f s |\n", name_.c_str(),
                what.c_str(), ranks, rounds, bound.c_str(), static_cast<unsigned long long>(found.states),
                static_cast<unsigned long long>(found.executions), static_cast<unsigned long long>(found.by_chance),
                seconds);
    std::fflush(stdout);
    // Mistakes show in small cases.
    if (found.states > most_states_for_mistakes && !is_soak()) return;
    cases_.push_back({found.states, [make, within, this](const mutant& mistake) {
                        return explore<Scenario>(world_, make, within, mistake, nullptr);
                      }});
  }

  /// Must be found wrong: a mistake of several lines, written out.
  template <class Scenario>
  void is_caught(const std::string& what, const bounds& within, std::function<void(std::optional<Scenario>&)> make) {
    const finding found = explore<Scenario>(world_, make, within, {}, nullptr);
    INFO(name_, ": ", what);
    CHECK(found.wrong);
    ++mutants_;
    caught_ += found.wrong;
    say("written out: " + what, found);
  }

  /// A mistake written out that nobody can see, and why.
  template <class Scenario>
  void is_harmless(const std::string& what, const char* reason, const bounds& within,
                   std::function<void(std::optional<Scenario>&)> make) {
    const finding found = explore<Scenario>(world_, make, within, {}, nullptr);
    INFO(name_, ": ", what, ": ", found.why);
    CHECK_FALSE(found.wrong);
    ++mutants_;
    ++harmless_;
    std::printf("    harmless: %s\n      %s\n", what.c_str(), reason);
  }

  /// In the sources named (`file`, or `file#part of the line`): every order weakened by one step, every store, wake and
  /// fence left out, every store and addition made late. Each is shown by some schedule of some case, or is in the
  /// list.
  void seed_mistakes(const std::vector<std::string_view>& sources, const std::vector<harmless>& list) {
    std::sort(cases_.begin(), cases_.end(), [](const one_case& a, const one_case& b) { return a.states < b.states; });
    std::vector<int> used(list.size(), 0);
    std::vector<mutant> open = first_mistakes(sources);
    while (!open.empty()) {
      const mutant mistake = open.back();
      open.pop_back();
      finding found;
      for (const auto& each : cases_) {
        found = each.explore(mistake);
        if (found.wrong) break;
      }
      ++mutants_;
      if (found.wrong) {
        ++caught_;
        say(mistake.text() + "   " + mistake.where.code(), found);
        continue;
      }
      // Not shown: then a weaker one is tried as well, so that it is known how weak it may be.
      if (mistake.how == mutant::mistake_kind::weaker) {
        for (const std::memory_order order : weaker(mistake.where.what, mistake.to)) {
          open.push_back({mutant::mistake_kind::weaker, mistake.where, order});
        }
      }
      const std::string code = mistake.where.code();
      bool listed = false;
      for (std::size_t i = 0; i < list.size(); ++i) {
        if (mistake.where.context().find(list[i].code) == std::string::npos ||
            mistake.text().find(list[i].change) == std::string::npos)
          continue;
        listed = true;
        if (used[i]++ == 0)
          std::printf("    harmless: %s   %s\n      %s\n", mistake.text().c_str(), code.c_str(), list[i].reason);
        break;
      }
      ++harmless_;
      if (std::getenv("BELAY_MODEL_VERBOSE") != nullptr && !listed)
        std::printf("    NOT CAUGHT: %s   %s\n", mistake.text().c_str(), code.c_str());
      INFO(name_, ": no schedule shows the mistake: ", mistake.text(), "   ", code);
      CHECK(listed);
    }
    for (std::size_t i = 0; i < list.size(); ++i) {
      INFO(name_, ": listed as harmless, but caught or never made: ", std::string(list[i].code), ", ",
           std::string(list[i].change));
      CHECK(used[i] > 0);
    }
  }
  void sum_up() const {
    std::printf("| %-14s | mistakes seeded: %d, caught: %d, harmless: %d\n", name_.c_str(), mutants_, caught_,
                harmless_);
    std::fflush(stdout);
  }

 private:
  static constexpr std::uint64_t most_states_for_mistakes = 150'000;

  [[nodiscard]] std::vector<mutant> first_mistakes(const std::vector<std::string_view>& sources) const {
    std::vector<mutant> out;
    for (const site& where : sites_) {
      const std::string_view file(where.file);
      const std::string code = where.code();
      const auto named = [&](std::string_view source) {
        const std::size_t hash = source.find('#');
        return file.ends_with(source.substr(0, hash)) &&
               (hash == std::string_view::npos || code.find(source.substr(hash + 1)) != std::string::npos);
      };
      if (std::none_of(sources.begin(), sources.end(), named)) continue;
      for (const std::memory_order order : weaker(where.what, where.order)) {
        if (where.what == act::sleep || where.what == act::wake || where.what == act::streaming_fence) break;
        out.push_back({mutant::mistake_kind::weaker, where, order});
      }
      if (where.what == act::store || where.what == act::exchange || where.what == act::compare ||
          where.what == act::wake || where.what == act::streaming_fence) {
        out.push_back({mutant::mistake_kind::omitted, where, {}});
      }
      if (where.what == act::store || where.what == act::exchange)
        out.push_back({mutant::mistake_kind::late, where, {}});
    }
    return out;
  }
  void say(const std::string& mistake, const finding& found) const {
    if (std::getenv("BELAY_MODEL_VERBOSE") == nullptr) return;
    std::printf("    %s after %llu schedules: %s\n      %s\n", found.wrong ? "caught" : "NOT CAUGHT",
                static_cast<unsigned long long>(found.executions + found.by_chance), mistake.c_str(),
                found.why.c_str());
  }

  std::string name_;
  execution world_;
  std::vector<site> sites_;
  struct one_case {
    std::uint64_t states;
    std::function<finding(const mutant&)> explore;
  };
  std::vector<one_case> cases_;
  int mutants_ = 0;
  int caught_ = 0;
  int harmless_ = 0;
};

}  // namespace model
