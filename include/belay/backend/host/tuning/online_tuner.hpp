// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Which variant of an operation is fastest, found by running it. For each kind of call the first rank of a group runs
// each variant a few times in a row, timed from the moment when all ranks have entered until all have left, and stays
// with the best for as long as that takes about what it took. Its call descriptor tells the others which one it is. No
// rank can time this alone: what a line costs depends on the core that had it last. (A receive is a copy by one rank,
// which tunes it alone.)
// IWYU pragma: private, include "belay/backend/host.hpp"
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "belay/core/bounds.hpp"
#include "belay/core/config.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

/// One rank's measurements. Kinds of calls are numbers other than 0.
class online_tuner {
 public:
  static constexpr std::size_t most_variants = 8, most_kinds = 128;
  /// Of one kind, until its variant is found.
  static constexpr int most_calls = 25;
  /// After this many calls in a row that take less than half or more than twice of what was found, a kind is tried
  /// anew.
  static constexpr int least_drift = 16;

  /// Room for `most_kinds`; kinds beyond them use the first variant.
  online_tuner() : kinds_(most_kinds) {}
  online_tuner(const online_tuner&) = delete;
  online_tuner& operator=(const online_tuner&) = delete;

  /// The variant of the next call of this kind, of `variants` (at most `most_variants`). While `timing`, the caller
  /// says `done` afterwards.
  [[nodiscard]] std::size_t next(std::uint64_t kind, std::size_t bytes, std::size_t variants) noexcept {
    timed_ = find(kind);
    if (timed_ == nullptr) return 0;
    timed_->bytes = bytes;
    variants_ = variants;
    return timed_->variant;
  }
  [[nodiscard]] bool timing() const noexcept { return timed_ != nullptr; }
  /// Whether the variant of the call is the one that was found.
  [[nodiscard]] bool settled() const noexcept { return timed_ == nullptr || timed_->settled; }

  /// The call took so long.
  void done(double us) noexcept {
    tuning_record& now = *timed_;
    const auto cost = static_cast<float>(us / static_cast<double>(now.bytes));
    if (now.settled) return watch(now, cost);
    // The first run finds the caches as another variant has left them.
    float& best = now.costs[now.variant];
    if (now.run == 1 || (now.run > 1 && cost < best)) best = cost;
    if (++now.run < runs_of(now.bytes)) return;
    now.run = 0;
    if (++now.variant < variants_) return;
    const auto end = now.costs.begin() + static_cast<std::ptrdiff_t>(variants_);
    const auto least = std::min_element(now.costs.begin(), end);
    // A smaller difference is noise.
    now.variant =
        *least < margin * now.costs[0] ? static_cast<std::uint8_t>(least - now.costs.begin()) : std::uint8_t{0};
    now.settled = true;
  }

  /// Calls `f(kind, bytes, variant, costs)` for each kind whose variant is found: the bytes of its last call and each
  /// variant's microseconds a byte.
  template <class F>
  void for_each_settled(F f) const {
    for (const tuning_record& each : kinds_) {
      if (each.kind != 0 && each.settled) f(each.kind, each.bytes, std::size_t{each.variant}, std::span(each.costs));
    }
  }

  /// A number for sizes that share a variant: powers of two to 32 MiB, and what is more. Less than 15.
  [[nodiscard]] static constexpr std::uint64_t class_of(std::size_t bytes) noexcept {
    constexpr std::size_t least = 4 * 1024, most = 32 * 1024 * 1024;
    return static_cast<std::uint64_t>(std::bit_width(std::clamp(bytes, least, most)) - std::bit_width(least));
  }

 private:
  static constexpr float margin = 0.95F;

  struct tuning_record {
    std::uint64_t kind = 0;
    std::size_t bytes = 0;                     // of its last call
    std::array<float, most_variants> costs{};  // microseconds a byte
    std::uint8_t variant = 0;                  // tried now, or found
    std::uint8_t run = 0;
    bool settled = false;
    std::uint8_t rounds = 0;  // tried anew this often
    std::uint16_t drift = 0;  // the latest calls in a row that took unlike what was found
  };

  // Cores move, and what was tried in a loop is called with work in between: then all is tried anew, each time after
  // twice as many calls.
  static void watch(tuning_record& now, float cost) noexcept {
    const float found = now.costs[now.variant];
    now.drift = cost > 2 * found || cost < found / 2 ? static_cast<std::uint16_t>(now.drift + 1) : std::uint16_t{0};
    constexpr std::uint8_t most_rounds = 8;
    if (now.drift < least_drift << now.rounds) return;
    now.rounds = lesser_of<std::uint8_t>(now.rounds + 1, most_rounds);
    now.drift = 0;
    now.variant = 0;
    now.settled = false;
  }

  // The shorter a call, the noisier it is.
  [[nodiscard]] static constexpr int runs_of(std::size_t bytes) noexcept {
    return bytes < 1024 * 1024 ? 6 : bytes < 32 * 1024 * 1024 ? 5 : 3;
  }
  [[nodiscard]] tuning_record* find(std::uint64_t kind) noexcept {
    constexpr std::size_t looks = 8;
    const auto first = static_cast<std::size_t>((kind * 0x9E3779B97F4A7C15U) >> 57);
    static_assert(most_kinds == std::size_t{1} << (64 - 57));
    for (std::size_t i = 0; i < looks; ++i) {
      tuning_record& here = kinds_[(first + i) % most_kinds];
      if (here.kind == kind) return &here;
      if (here.kind != 0) continue;
      here.kind = kind;
      return &here;
    }
    return nullptr;
  }

  std::vector<tuning_record> kinds_;
  tuning_record* timed_ = nullptr;
  std::size_t variants_ = 0;
};

/// Whether BELAY_TUNING is `print`. Throws input_error for any other text.
[[nodiscard]] BELAY_DECL bool prints_tuning();

/// The text of BELAY_TUNING=print, when a group ends: a line for each kind of call that is settled: the variant and
/// every variant's microseconds. Empty where none is.
[[nodiscard]] BELAY_DECL std::string settled_text(const online_tuner& tuner, int ranks);

/// Writes it to standard error where BELAY_TUNING is `print`. Never throws: what cannot be printed is not.
BELAY_DECL void print_settled(const online_tuner& tuner, int ranks) noexcept;

}  // namespace host
}  // namespace belay::inline BELAY_ABI

#if !defined(BELAY_SEPARATE_COMPILATION)
#include "belay/backend/host/tuning/online_tuner.ipp"  // IWYU pragma: export
#endif
