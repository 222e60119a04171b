// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Memory comes in tiers, each with a budget of its own. A meter counts what is leased from a tier, over all its
// arenas, so that live and peak bytes are one number a tier and can be compared with the plan.
//
//   belay::budget limit;                                     // unlimited
//   limit[belay::tier::host] = std::size_t{8} << 30;
//   belay::tier_meters meters;
//   const std::size_t peak = meters[belay::tier::device].peak_bytes();
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "belay/core/bounds.hpp"
#include "belay/core/config.hpp"

namespace belay::inline BELAY_ABI {

/// Kinds of memory, fastest first. A CPU-only rank uses `device` for what its layers compute on and
/// `host` for staging.
enum class tier : std::uint8_t { device, pinned, host, file };

/// The processor that has tier device: the host itself, which addresses all tiers, or a device to which lower tiers are
/// copied. On an `own_device` a rank is alone, and peers' rows are sent, not addressed.
enum class computes_on : std::uint8_t { host, device, own_device };
[[nodiscard]] constexpr bool on_device(computes_on what) noexcept { return what != computes_on::host; }

/// The number of tiers, and a budget without a limit.
inline constexpr std::size_t tier_count = 4;
inline constexpr std::size_t unlimited_bytes = largest_value<std::size_t>;

/// The name, as flags and plans have it: "device", "pinned", "host", "file".
[[nodiscard]] constexpr const char* name(tier where) noexcept {
  switch (where) {
    case tier::device: return "device";
    case tier::pinned: return "pinned";
    case tier::host: return "host";
    case tier::file: return "file";
  }
  return "unknown";
}

/// Where the bytes of tier file are: on a disk, or in the machine's memory, as those of tmpfs.
enum class file_bytes : std::uint8_t { on_disk, in_memory };

/// Bytes that one rank may use of each tier; unlimited by default.
struct budget {
  /// Bytes a tier; all unlimited where nothing is said.
  std::array<std::size_t, tier_count> bytes{unlimited_bytes, unlimited_bytes, unlimited_bytes, unlimited_bytes};

  /// Bytes of a tier.
  [[nodiscard]] constexpr std::size_t operator[](tier where) const noexcept {
    return bytes[static_cast<std::size_t>(where)];
  }
  [[nodiscard]] constexpr std::size_t& operator[](tier where) noexcept {
    return bytes[static_cast<std::size_t>(where)];
  }
};

/// Bytes that one rank has leased from one tier, now and at most, and how often memory was obtained for it. The latter
/// does not change after the first step.
class tier_meter {
 public:
  /// Counts bytes taken and given back, and calls that took memory of the system.
  void add(std::size_t bytes) noexcept {
    live_ += bytes;
    if (live_ > peak_) peak_ = live_;
  }
  void remove(std::size_t bytes) noexcept { live_ -= bytes; }
  void count_allocation() noexcept { ++allocations_; }
  /// There will be as many.
  void expect_peak(std::size_t bytes) noexcept {
    if (bytes > peak_) peak_ = bytes;
  }
  /// The peak restarts from what is live now.
  void restart_peak() noexcept { peak_ = live_; }

  /// Bytes now, the most there were, and calls that took memory.
  [[nodiscard]] std::size_t live_bytes() const noexcept { return live_; }
  [[nodiscard]] std::size_t peak_bytes() const noexcept { return peak_; }
  [[nodiscard]] std::uint64_t allocations() const noexcept { return allocations_; }

 private:
  std::size_t live_ = 0;
  std::size_t peak_ = 0;
  std::uint64_t allocations_ = 0;
};

/// The meters of one rank, one for each tier.
class tier_meters {
 public:
  /// The meter of a tier.
  [[nodiscard]] tier_meter& operator[](tier where) noexcept { return meters_[static_cast<std::size_t>(where)]; }
  [[nodiscard]] const tier_meter& operator[](tier where) const noexcept {
    return meters_[static_cast<std::size_t>(where)];
  }

 private:
  std::array<tier_meter, tier_count> meters_{};
};

}  // namespace belay::inline BELAY_ABI
