// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Where the decisions of one execution come from: depth first through all of them, or by chance; and the set of states
// in which the search has been.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "model/explorer/memory.hpp"

namespace model {

class choices {
 public:
  /// All decisions, depth first.
  void search() noexcept { *this = choices{}; }
  /// By chance: `seed` gives the same ones again.
  void gamble(std::uint64_t seed) noexcept {
    *this = choices{};
    random_ = mix(seed, 1) | 1;
  }

  /// One of `count`; 0 is the usual one.
  [[nodiscard]] int choose(int count) {
    if (random_ != 0) {
      const std::uint64_t drawn = next_random();
      return (drawn & 1) != 0 ? 0 : static_cast<int>((drawn >> 8) % static_cast<unsigned>(count));
    }
    if (at_ == made_.size()) made_.push_back({0, static_cast<std::uint16_t>(count)});
    return made_[at_++].chosen;
  }
  /// Nothing decided from here on has been decided before.
  [[nodiscard]] bool fresh() const noexcept { return random_ == 0 && at_ == made_.size(); }
  [[nodiscard]] bool by_chance() const noexcept { return random_ != 0; }

  /// To the next execution; false when there is none.
  [[nodiscard]] bool advance() noexcept {
    at_ = 0;
    while (!made_.empty() && made_.back().chosen + 1 == made_.back().count) made_.pop_back();
    if (made_.empty()) return false;
    ++made_.back().chosen;
    return true;
  }

 private:
  struct decision {
    std::uint16_t chosen;
    std::uint16_t count;
  };
  std::uint64_t next_random() noexcept {
    random_ ^= random_ << 13;
    random_ ^= random_ >> 7;
    random_ ^= random_ << 17;
    return random_ * 0x2545f4914f6cdd1dULL >> 8;
  }

  std::vector<decision> made_;
  std::size_t at_ = 0;
  std::uint64_t random_ = 0;
};

/// States by their hash, each with the fewest deviations it was reached with.
class visited {
 public:
  void clear() {
    slots_.assign(std::size_t{1} << 14, {});
    count_ = 0;
  }
  [[nodiscard]] std::size_t size() const noexcept { return count_; }

  /// False: it was reached before with as few.
  [[nodiscard]] bool enter(std::uint64_t state, std::uint8_t deviations) {
    if (2 * (count_ + 1) > slots_.size()) grow();
    hash_slot& found = find(state | 1);
    if (found.state == 0) {
      found = {state | 1, deviations};
      ++count_;
      return true;
    }
    if (found.deviations <= deviations) return false;
    found.deviations = deviations;
    return true;
  }

 private:
  struct hash_slot {
    std::uint64_t state = 0;
    std::uint8_t deviations = 0;
  };
  [[nodiscard]] hash_slot& find(std::uint64_t state) noexcept {
    std::size_t i = (state >> 1) & (slots_.size() - 1);
    while (slots_[i].state != 0 && slots_[i].state != state) i = (i + 1) & (slots_.size() - 1);
    return slots_[i];
  }
  void grow() {
    std::vector<hash_slot> old(slots_.size() * 2);
    old.swap(slots_);
    for (const hash_slot& each : old) {
      if (each.state != 0) find(each.state) = each;
    }
  }

  std::vector<hash_slot> slots_;
  std::size_t count_ = 0;
};

}  // namespace model
