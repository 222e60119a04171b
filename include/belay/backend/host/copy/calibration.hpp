// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Which memory access suits a copy of which size, measured on this machine once per job and shared by its ranks.
// IWYU pragma: private, include "belay/backend/host.hpp"
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>

#include "belay/core/bounds.hpp"
#include "belay/core/config.hpp"
#include "belay/core/copy.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

/// Microseconds of each copy access, the best of a few, in classes of size; 0: not measured.
struct copy_times {
  static constexpr std::array<std::size_t, 6> sizes{std::size_t{4} << 10, std::size_t{32} << 10, std::size_t{256} << 10,
                                                    std::size_t{1} << 20, std::size_t{3} << 19,  std::size_t{4} << 20};

  std::array<std::array<double, std::size(copy_accesses)>, sizes.size()> us{};
};

/// From here on the access of a copy is measured. Below it follows from what copies between two cores cost, which one
/// thread's calibration does not see (docs/explanation/tuning.md).
inline constexpr std::size_t least_calibrated_copy = 128 * 1024;

/// From here on no cache holds what is copied, and stores bypass the caches on every machine that was measured.
inline constexpr std::size_t least_large_copy = std::size_t{8} << 20;

/// The access for each class of size, and the size from which stores bypass the caches. Trivially copyable and without
/// pointers: it stands in the control block.
class copy_table {
 public:
  /// libc for all calibrated sizes: the table of a world that does not calibrate.
  constexpr copy_table() noexcept { accesses_.fill(memory_access::libc); }

  /// Non-temporal stores begin at the class from which on they gain most in all over temporal ones, by 5 % at least: a
  /// single disturbed time does not decide. Then the fastest access of each class is taken if it beats the default by
  /// 10 %. The default is libc; from `least_default_non_temporal` on what bypasses the caches, or else vectors. Classes
  /// that were not measured are libc's.
  explicit copy_table(const copy_times& times) noexcept;

  /// For a copy of `bytes` in one piece.
  [[nodiscard]] memory_access access_of(std::size_t bytes) const noexcept {
    if (bytes >= least_large_copy) return memory_access::non_temporal;
    if (bytes >= least_calibrated_copy) return calibrated(bytes);
    if (bytes < least_string_copy) return memory_access::libc;
    return bytes <= most_string_copy && strings_take_lines() ? memory_access::rep_movsb : memory_access::temporal;
  }
  /// Of the class that is nearest to `bytes`.
  [[nodiscard]] memory_access calibrated(std::size_t bytes) const noexcept {
    std::size_t i = 0;
    while (i + 1 < accesses_.size() && bytes >= least_of_class(i + 1)) ++i;
    return accesses_[i];
  }
  /// Whether stores bypass the caches where each rank reads and writes `bytes`.
  [[nodiscard]] bool non_temporal(std::size_t bytes) const noexcept {
    return bytes >= least_large_copy || (bytes >= least_calibrated_copy && bytes >= non_temporal_from_);
  }
  [[nodiscard]] std::size_t non_temporal_from_bytes() const noexcept { return non_temporal_from_; }

  /// Copies by the access of `bytes`; a piece of `whole_bytes` that are copied one after the other.
  void copy(void* to, const void* from, std::size_t bytes, std::size_t whole_bytes) const noexcept {
    copy_bytes(to, from, bytes, access_of(bytes), whole_bytes);
  }
  void copy(void* to, const void* from, std::size_t bytes) const noexcept { copy(to, from, bytes, bytes); }
  /// Copies by `how`; automatic: by the access of `bytes`. A piece of `whole_bytes` that are copied one after the
  /// other.
  void copy_by(memory_access how, void* to, const void* from, std::size_t bytes,
               std::size_t whole_bytes) const noexcept {
    copy_bytes(to, from, bytes, how == memory_access::automatic ? access_of(bytes) : as_copy(how), whole_bytes);
  }
  void copy_by(memory_access how, void* to, const void* from, std::size_t bytes) const noexcept {
    copy_by(how, to, from, bytes, bytes);
  }
  /// A piece of the `moved` bytes that a rank stores into its peers' and its own buffers, read from `read` bytes of its
  /// own.
  void push_by(memory_access how, void* to, const void* from, std::size_t bytes, std::size_t read,
               std::size_t moved) const noexcept {
    copy_bytes(to, from, bytes, how == memory_access::automatic ? push_access(bytes, read, moved) : as_copy(how),
               moved);
  }

 private:
  // Up to most_short_push, and again from least_string_push to most_string_push, where pushed lines lie in the shared
  // cache, `rep movsb` takes lines that vectors would read first.
  static constexpr std::size_t least_string_copy = 4 * 1024, most_string_copy = 16 * 1024, most_short_push = 32 * 1024,
                               least_string_push = 512 * 1024, most_string_push = 4 * 1024 * 1024;

  [[nodiscard]] memory_access push_access(std::size_t bytes, std::size_t read, std::size_t moved) const noexcept {
    const memory_access how = access_of((read + moved) / 2);  // a copy of n bytes reads as many as it stores
    const bool takes_lines = moved <= most_short_push || (moved >= least_string_push && moved < most_string_push);
    const bool by_string =
        takes_lines && how != memory_access::non_temporal && bytes >= least_string_copy && strings_take_lines();
    return by_string ? memory_access::rep_movsb : how;
  }
  // Between two classes the boundary is their geometric mean.
  [[nodiscard]] static constexpr std::size_t least_of_class(std::size_t i) noexcept {
    constexpr std::array<std::size_t, copy_times::sizes.size()> least{0,          11'586,    92'682,
                                                                      512 * 1024, 1'284'239, 2'568'477};
    return least[i];
  }

  std::array<memory_access, copy_times::sizes.size()> accesses_{};
  std::size_t non_temporal_from_ = largest_value<std::size_t>;
};

/// Times every copy access in every class that fits into `to` and `from`, the large classes first left out once
/// `budget` is spent; 0: no budget.
BELAY_DECL copy_times time_copies(std::span<std::byte> to, std::span<std::byte> from, std::chrono::microseconds budget);

/// The table of this machine from one thread's copies: at most 60 ms, and 8 MiB while it lasts. `copy_table{}` where
/// there is no memory for that.
BELAY_DECL copy_table calibrate_copies();

}  // namespace host
}  // namespace belay::inline BELAY_ABI

#if !defined(BELAY_SEPARATE_COMPILATION)
#include "belay/backend/host/copy/calibration.ipp"  // IWYU pragma: export
#endif
