// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Which manner of an operation is fastest, found by doing it. For each kind of call the first rank of a group does each
// manner a few times in a row, from when all ranks have entered until all have left, and stays with the best; its offer
// tells the others which one it is. Nobody can time this alone: what a line costs depends on which core had it last, and
// on whether that wrote it, read it or stored it around its caches.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "belay/core/config.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

/// The trials of one rank. Kinds of calls are numbers other than 0.
class trials {
 public:
  static constexpr std::size_t most_manners = 8, most_kinds = 128;
  /// Of one kind, until its manner is found.
  static constexpr int most_calls = 36;

  /// Room for `most_kinds`; what comes after them is done in the first manner.
  trials() : kinds_(most_kinds) {}
  trials(const trials&) = delete;
  trials& operator=(const trials&) = delete;

  /// The manner of the next call of this kind, of `manners` (at most `most_manners`). While `timing`, the caller says `done`
  /// afterwards.
  [[nodiscard]] std::size_t next(std::uint64_t kind, std::size_t bytes, std::size_t manners) noexcept {
    timed_ = nullptr;
    entry* const found = find(kind);
    if (found == nullptr) return 0;
    if (found->settled) return found->manner;
    timed_ = found;
    manners_ = manners;
    runs_ = runs_of(bytes);
    return found->manner;
  }
  [[nodiscard]] bool timing() const noexcept { return timed_ != nullptr; }

  /// The call took so long.
  void done(double us) noexcept {
    entry& now = *timed_;
    timed_ = nullptr;
    // The first finds the caches as another manner has left them.
    float& best = now.us[now.manner];
    if (now.run == 1 || (now.run > 1 && us < static_cast<double>(best))) best = static_cast<float>(us);
    if (++now.run < runs_) return;
    now.run = 0;
    if (++now.manner < manners_) return;
    const auto end = now.us.begin() + static_cast<std::ptrdiff_t>(manners_);
    const auto least = std::min_element(now.us.begin(), end);
    // Less than that is chance.
    now.manner = *least < margin * now.us[0] ? static_cast<std::uint8_t>(least - now.us.begin()) : std::uint8_t{0};
    now.settled = true;
  }

  /// A number for sizes in which one manner is best: powers of two to 32 MiB, and what is more. Less than 15.
  [[nodiscard]] static constexpr std::uint64_t class_of(std::size_t bytes) noexcept {
    constexpr std::size_t least = 4 * 1024, most = 32 * 1024 * 1024;
    return static_cast<std::uint64_t>(std::bit_width(std::clamp(bytes, least, most)) - std::bit_width(least));
  }

 private:
  static constexpr float margin = 0.95F;

  struct entry {
    std::uint64_t kind = 0;
    std::array<float, most_manners> us{};
    std::uint8_t manner = 0;  // tried now, or found
    std::uint8_t run = 0;
    bool settled = false;
  };

  // The shorter a call, the more of it is chance.
  [[nodiscard]] static constexpr int runs_of(std::size_t bytes) noexcept {
    return bytes < 1024 * 1024 ? 6 : bytes < 32 * 1024 * 1024 ? 5 : 3;
  }
  [[nodiscard]] entry* find(std::uint64_t kind) noexcept {
    constexpr std::size_t looks = 8;
    const auto first = static_cast<std::size_t>((kind * 0x9E3779B97F4A7C15U) >> 57);
    static_assert(most_kinds == std::size_t{1} << (64 - 57));
    for (std::size_t i = 0; i < looks; ++i) {
      entry& here = kinds_[(first + i) % most_kinds];
      if (here.kind == kind) return &here;
      if (here.kind != 0) continue;
      here.kind = kind;
      return &here;
    }
    return nullptr;
  }

  std::vector<entry> kinds_;
  entry* timed_ = nullptr;
  std::size_t manners_ = 0;
  int runs_ = 0;
};

}  // namespace host
}  // namespace belay::inline BELAY_ABI
