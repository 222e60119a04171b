// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Compares values that all ranks of a group must agree on: what they replicate, once and in all builds; arguments, with
// checks across ranks (BELAY_CHECKS 2). A difference is found on all ranks of the group at once, before it becomes a
// wrong number.
// IWYU pragma: private, include "belay/parallel.hpp"
#pragma once

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "belay/comm/communicator.hpp"
#include "belay/core/config.hpp"
#include "belay/core/function_ref.hpp"
#include "belay/core/printable.hpp"
#include "belay/core/where.hpp"

namespace belay::inline BELAY_ABI {

/// Compares words between the ranks of a group. Its memory is allocated at first use and kept.
class rank_comparison {
 public:
  /// The word of a rank that has none: it agrees with every other.
  static constexpr std::uint64_t abstains = ~std::uint64_t{0};

  /// Whether the words of any two ranks differ. Collective over `group`, every rank with the same number of words. All
  /// ranks get the same answer.
  template <can_all_gather<std::uint64_t> Group>
  [[nodiscard]] bool differ(const Group& group, std::span<const std::uint64_t> own, where at) {
    const auto ranks = static_cast<std::size_t>(group.size());
    words_.resize(ranks * own.size());
    count_ = own.size();
    first_ = 0;
    if (ranks < 2 || own.empty()) return false;
    control_of(group).all_gather(own, std::span<std::uint64_t>(words_), at);
    for (; first_ < count_; ++first_) {
      std::uint64_t agreed = abstains;
      for (std::size_t i = first_; i < words_.size(); i += count_) {
        if (words_[i] == abstains || words_[i] == agreed) continue;
        if (agreed != abstains) return true;
        agreed = words_[i];
      }
    }
    return false;
  }

  /// The first word in which ranks differed.
  [[nodiscard]] std::size_t first() const noexcept { return first_; }

  /// The least of these words, where ranks differed.
  [[nodiscard]] std::uint64_t least() const noexcept {
    std::uint64_t found = abstains;
    for (std::size_t i = first_; i < words_.size(); i += count_) found = words_[i] < found ? words_[i] : found;
    return found;
  }

  /// "rank 1: 10; ranks 0, 2: 30": the first word in which ranks differ. They are ranks of the world where the group
  /// knows these.
  template <class Group>
  [[nodiscard]] std::string text(const Group& group) const;
  /// "rank 1 and ranks 0, 2", without the words, for hashes.
  template <class Group>
  [[nodiscard]] std::string ranks(const Group& group) const;

 private:
  template <class Group>
  [[nodiscard]] std::string each_word(const Group& group, function_ref<std::string(std::uint64_t)> describe,
                                      const char* between) const;

  std::vector<std::uint64_t> words_;  // by rank, `count_` words each
  std::size_t count_ = 0;
  std::size_t first_ = 0;
};

template <class Group>
std::string rank_comparison::text(const Group& group) const {
  return each_word(
      group, [](std::uint64_t word) { return ": " + std::to_string(word); }, "; ");
}

template <class Group>
std::string rank_comparison::ranks(const Group& group) const {
  return each_word(
      group, [](std::uint64_t) { return std::string(); }, " and ");
}

template <class Group>
std::string rank_comparison::each_word(const Group& group, function_ref<std::string(std::uint64_t)> describe,
                                       const char* between) const {
  std::vector<int> numbers(static_cast<std::size_t>(group.size()));
  std::iota(numbers.begin(), numbers.end(), 0);
  if constexpr (requires { group.members(); }) numbers.assign(group.members().begin(), group.members().end());
  std::string out;
  std::vector<bool> listed(numbers.size());
  for (std::size_t r = 0; r < numbers.size(); ++r) {
    const std::uint64_t word = words_[r * count_ + first_];
    if (listed[r] || word == abstains) continue;
    std::vector<int> agreeing;
    for (std::size_t other = r; other < numbers.size(); ++other) {
      if (words_[other * count_ + first_] != word) continue;
      listed[other] = true;
      agreeing.push_back(numbers[other]);
    }
    out += (out.empty() ? "" : between) + ranks_text(agreeing) + describe(word);
  }
  return out;
}

}  // namespace belay::inline BELAY_ABI
