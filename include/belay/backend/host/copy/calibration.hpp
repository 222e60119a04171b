// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Which copy for which size, found by timing them on this machine: where one processor wants stores around the caches
// from some megabytes on, another is fastest with one string instruction at every size. Ranks that time at the same
// time find what holds when all of them copy at once.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <limits>
#include <memory>
#include <new>
#include <span>

#include "belay/backend/host/copy/copy.hpp"
#include "belay/core/config.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

/// Microseconds of each kind of copy (the best of a few) in classes of size; 0: not measured. Ranks that want one
/// choice merge their times by `slowest_of` first.
struct copy_times {
  static constexpr std::array<std::size_t, 7> sizes{std::size_t{4} << 10, std::size_t{32} << 10, std::size_t{256} << 10,
                                                    std::size_t{1} << 20, std::size_t{3} << 19,  std::size_t{4} << 20,
                                                    std::size_t{16} << 20};

  std::array<std::array<double, std::size(copy_kinds)>, sizes.size()> us{};

  [[nodiscard]] static copy_times slowest_of(copy_times a, const copy_times& b) noexcept {
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      for (std::size_t k = 0; k < std::size(copy_kinds); ++k) a.us[i][k] = std::max(a.us[i][k], b.us[i][k]);
    }
    return a;
  }
};

/// A kind of copy for each class of size, and from which size on stores go around the caches.
class copy_choice {
 public:
  /// The library's copy always, no streaming: what is chosen where nothing was timed.
  copy_choice() noexcept {
    kinds_.fill(copy_kind::library);
    for (std::size_t i = 1; i < kinds_.size(); ++i)
      least_of_class_[i] = middle_of(copy_times::sizes[i - 1], copy_times::sizes[i]);
  }

  /// Streaming starts at the class from which on it gains most, all in all, over stores of the same registers through
  /// the caches: one disturbed timing does not decide. A twentieth is no gain. Then the fastest of each class, if it
  /// beats the usual kind by a tenth: less than that is chance. Usual is the library, and from some megabytes on what
  /// streams or else vectors, which fetch ahead. Classes without times are left to the library.
  explicit copy_choice(const copy_times& times) noexcept : copy_choice() {
    const auto us = [&](std::size_t i, copy_kind how) { return times.us[i][static_cast<std::size_t>(how)]; };
    double gained = 0, most_gained = 0;
    for (std::size_t i = kinds_.size(); i-- > 0;) {
      if (us(i, copy_kind::library) == 0) continue;
      gained += std::log(0.95 * us(i, copy_kind::wide) / us(i, copy_kind::streaming));
      if (gained <= most_gained) continue;
      most_gained = gained;
      stream_from_ = least_of_class_[i];
    }
    for (std::size_t i = 0; i < kinds_.size(); ++i) {
      const auto& row = times.us[i];
      if (us(i, copy_kind::library) == 0) continue;
      const std::size_t bytes = copy_times::sizes[i];
      if (bytes >= least_usually_streaming && streams(bytes))
        kinds_[i] = copy_kind::streaming;
      else if (bytes >= least_usually_wide)
        kinds_[i] = copy_kind::wide;
      const auto least = std::min_element(row.begin(), row.end());
      if (*least < margin * us(i, kinds_[i])) kinds_[i] = copy_kinds[least - row.begin()];
    }
  }

  /// For a copy of `bytes` in one piece: that of the class nearest to it.
  [[nodiscard]] copy_kind of(std::size_t bytes) const noexcept {
    std::size_t i = 0;
    while (i + 1 < kinds_.size() && bytes >= least_of_class_[i + 1]) ++i;
    return kinds_[i];
  }
  /// Whether what each rank reads and writes `bytes` of is better stored around the caches.
  [[nodiscard]] bool streams(std::size_t bytes) const noexcept { return bytes >= stream_from_; }
  [[nodiscard]] std::size_t stream_from_bytes() const noexcept { return stream_from_; }

 private:
  static constexpr double margin = 0.9;
  static constexpr std::size_t least_usually_streaming = std::size_t{3} << 19,
                               least_usually_wide = std::size_t{4} << 20;
  [[nodiscard]] static std::size_t middle_of(std::size_t a, std::size_t b) noexcept {
    return static_cast<std::size_t>(std::ceil(std::sqrt(static_cast<double>(a) * static_cast<double>(b))));
  }

  std::array<copy_kind, copy_times::sizes.size()> kinds_;
  std::array<std::size_t, copy_times::sizes.size()>
      least_of_class_{};  // the geometric middle between it and the one below
  std::size_t stream_from_ = std::numeric_limits<std::size_t>::max();
};

/// Times every kind in every class from `least` bytes on that fits into `to` and `from`, for about `budget`: later
/// classes are left out when it is spent. `meet()` is called before each timed copy; ranks that time together wait for
/// each other there, and give buffers of the same size and no budget, so that all make the same calls.
template <class Meet>
[[nodiscard]] copy_times time_copies(std::span<std::byte> to, std::span<std::byte> from,
                                     std::chrono::microseconds budget, Meet meet, std::size_t least = 0) {
  using clock = std::chrono::steady_clock;
  const clock::time_point start = clock::now();
  copy_times out;
  for (std::size_t i = 0; i < copy_times::sizes.size(); ++i) {
    const std::size_t bytes = copy_times::sizes[i];
    if (bytes < least) continue;
    if (bytes > std::min(to.size(), from.size()) || (budget.count() > 0 && clock::now() - start > budget)) break;
    // The more often the smaller, because a clock's tick is not much shorter than a small copy.
    const int rounds = bytes > (std::size_t{1} << 20) ? 2 : bytes > (std::size_t{32} << 10) ? 4 : 9;
    const std::size_t places = std::min(to.size(), from.size()) / bytes;
    for (int round = 0; round < rounds; ++round) {
      // Somewhere else each time: which lines of a cache the pages share is chance.
      const std::size_t place = static_cast<std::size_t>(round) % places * bytes;
      std::byte* const target = to.data() + place;
      std::byte* const source = from.data() + place;
      for (std::size_t k = 0; k < std::size(copy_kinds); ++k) {
        copy_bytes(target, source, bytes, copy_kinds[k]);  // brings the target where this kind leaves it
        // Fresh bytes, and never zeros: stores of zeros are faster than those of anything else.
        for (std::size_t line = 0; line < bytes; line += 64) source[line] = static_cast<std::byte>(line / 64 % 255 + 1);
        meet();
        const clock::time_point before = clock::now();
        copy_bytes(target, source, bytes, copy_kinds[k]);
        const double us = std::chrono::duration<double, std::micro>(clock::now() - before).count();
        double& best = out.us[i][k];
        best = round == 0 ? us : std::min(best, us);
      }
    }
  }
  return out;
}

/// From here on a copy is of the largest class, which is timed by itself: it takes as long as all others, and memory.
inline constexpr std::size_t least_large_copy = std::size_t{8} << 20;

/// The choice for this machine, from one thread's copies in the classes from `least` bytes to `largest`.
[[nodiscard]] inline copy_choice probe_copies(std::size_t least, std::size_t largest) {
  const std::unique_ptr<std::byte[]> memory(new (std::nothrow) std::byte[2 * largest]);
  if (memory == nullptr) return {};  // who copies is in the middle of an operation
  std::fill(memory.get(), memory.get() + 2 * largest, std::byte{1});
  return copy_choice(time_copies(
      {memory.get(), largest}, {memory.get() + largest, largest}, std::chrono::milliseconds(40), [] {}, least));
}
/// For copies of less than `least_large_copy`: 15 to 40 ms, and 8 MiB while it lasts.
[[nodiscard]] inline copy_choice probe_copies() { return probe_copies(0, std::size_t{4} << 20); }
/// For larger ones: 60 to 100 ms, and 32 MiB while it lasts.
[[nodiscard]] inline copy_choice probe_large_copies() {
  return probe_copies(copy_times::sizes.back(), copy_times::sizes.back());
}

}  // namespace host
}  // namespace belay::inline BELAY_ABI
