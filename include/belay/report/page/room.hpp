// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Memory of a page, cut into arrays before the first step.
// IWYU pragma: private, include "belay/report/page.hpp"
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/where.hpp"

namespace belay::inline BELAY_ABI {

class report_room {
 public:
  explicit report_room(std::span<std::byte> memory) noexcept : rest_(memory) {}

  /// Bytes of which `count` elements of T take no more.
  template <class T>
  [[nodiscard]] static constexpr std::size_t bytes(std::size_t count) noexcept {
    return count * sizeof(T) + alignof(T);
  }

  /// The next `count` elements, zeroed.
  template <class T>
  [[nodiscard]] std::span<T> take(std::size_t count) {
    void* begin = rest_.data();
    std::size_t left = rest_.size();
    if (std::align(alignof(T), count * sizeof(T), begin, left) == nullptr)
      throw usage_error("a report page has less memory than room_bytes() says", where::current());
    rest_ = rest_.subspan(rest_.size() - left + count * sizeof(T));
    T* const out = static_cast<T*>(begin);
    std::uninitialized_value_construct_n(out, count);
    return {out, count};
  }

 private:
  std::span<std::byte> rest_;
};

/// Steps in at most `capacity` buckets of the same width, which doubles when one more is needed.
class step_buckets {
 public:
  explicit step_buckets(std::size_t capacity) noexcept : capacity_(capacity) {}

  /// The bucket of `step`; `halve()` is called for each doubling, and folds bucket 2i and 2i + 1 into i. `capacity`
  /// itself for a step before the first.
  template <class Halve>
  [[nodiscard]] std::size_t place(std::uint64_t step, Halve&& halve) {
    if (used_ == 0) first_ = last_ = step;
    if (step < first_) return capacity_;
    while ((step - first_) / each_ >= capacity_) {
      halve();
      used_ = (used_ + 1) / 2;
      each_ *= 2;
    }
    const auto out = static_cast<std::size_t>((step - first_) / each_);
    if (out >= used_) used_ = out + 1;
    if (step > last_) last_ = step;
    return out;
  }

  [[nodiscard]] std::size_t used() const noexcept { return used_; }
  [[nodiscard]] std::uint64_t each() const noexcept { return each_; }
  [[nodiscard]] std::uint64_t first() const noexcept { return first_; }
  [[nodiscard]] std::uint64_t last() const noexcept { return last_; }

  /// Where a bucket is between the first step and the last, 0 to 1; the middle where there is one step.
  [[nodiscard]] double position(std::size_t bucket) const noexcept {
    if (last_ == first_) return 0.5;
    const double middle = (static_cast<double>(bucket) + 0.5) * static_cast<double>(each_) - 0.5;
    const double share = middle / static_cast<double>(last_ - first_);
    return share > 1 ? 1 : share;
  }

 private:
  std::size_t capacity_;
  std::size_t used_ = 0;
  std::uint64_t each_ = 1;
  std::uint64_t first_ = 0;
  std::uint64_t last_ = 0;
};

}  // namespace belay::inline BELAY_ABI
