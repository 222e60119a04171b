// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The content of memory that was given back: numbers that are none, in which the owner's number is written, so that
// whoever finds one that is not finite can tell whose memory was read too late. A NaN keeps its payload through
// arithmetic on a host; a device makes its own of it.
//
//   const belay::lease_mark mark{belay::element_kind::f32, 7};
//   belay::poisoned_ranges fill;
//   fill.add(first, bytes, mark, belay::poison_density::every_byte);
//   stream.run(fill);                          // NaNs that say 7
//   belay::owner_in(squares_as_double).exact;  // 7
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "belay/core/config.hpp"
#include "belay/core/dtype.hpp"

// Of the address sanitizer, in builds that have one.
extern "C" {
void __asan_poison_memory_region(const volatile void* first, std::size_t bytes);
void __asan_unpoison_memory_region(const volatile void* first, std::size_t bytes);
}

namespace belay::inline BELAY_ABI {

/// The kind of a lease's elements, as far as what its memory holds afterwards depends on it.
enum class element_kind : std::uint8_t { unknown, f64, f32, f16, b16, i64, i32, i16, i8 };

/// The kind of a type; `unknown` for what is no element of a tensor.
template <class T>
[[nodiscard]] consteval element_kind kind_of_element() {
  using plain = std::remove_cv_t<T>;
  if constexpr (std::same_as<plain, double>)
    return element_kind::f64;
  else if constexpr (std::same_as<plain, float>)
    return element_kind::f32;
  else if constexpr (std::same_as<plain, fp16>)
    return element_kind::f16;
  else if constexpr (std::same_as<plain, bf16>)
    return element_kind::b16;
  else if constexpr (!std::integral<plain>)
    return element_kind::unknown;
  else if constexpr (sizeof(plain) == 8)
    return element_kind::i64;
  else if constexpr (sizeof(plain) == 4)
    return element_kind::i32;
  else if constexpr (sizeof(plain) == 2)
    return element_kind::i16;
  else
    return element_kind::i8;
}

/// The owner of a lease, by the number that `lease_owners` has given (0: nobody), and the kind of its elements.
struct lease_mark {
  /// The largest number of an owner.
  static constexpr std::uint16_t most_owners = 0xfff;

  lease_mark() = default;
  /// `owner` is 0 or a number that `lease_owners` has given.
  constexpr lease_mark(element_kind kind, std::uint16_t owner) noexcept
      : bits(static_cast<std::uint16_t>((static_cast<unsigned>(kind) << 12) | (owner & most_owners))) {}

  /// The kind of the elements.
  [[nodiscard]] BELAY_HD constexpr element_kind kind() const noexcept { return static_cast<element_kind>(bits >> 12); }
  /// Its owner's number.
  [[nodiscard]] BELAY_HD constexpr std::uint16_t owner() const noexcept {
    return static_cast<std::uint16_t>(bits & most_owners);
  }

  std::uint16_t bits = 0;  ///< the kind above the owner
};

/// Eight bytes of what such a lease holds when it was given back. Floats are NaN; integers are neither a small number
/// nor an index; memory of which nothing is known is NaN as float, double and bf16, and no index.
[[nodiscard]] BELAY_HD constexpr std::uint64_t poison_of(lease_mark mark) noexcept {
  const std::uint64_t n = mark.owner();
  // The first six bits of the payload are the number's lowest: they are left where a float is rounded to bf16.
  const std::uint64_t single = 0xFFC0A000U | (n & 63) << 16 | n >> 6;
  const auto twice = [](std::uint64_t word) { return word << 32 | word; };
  switch (mark.kind()) {
    case element_kind::f64: return 0xFFF0000000000000U | (single & 0x7FFFFFU) << 29;
    case element_kind::f32: return twice(single);
    case element_kind::f16: return twice((0xFE00U | (n & 63) << 3) * 0x10001U);
    case element_kind::b16: return twice((0xFFC0U | (n & 63)) * 0x10001U);
    case element_kind::i64: return 0x8A00000000000000U | n;
    case element_kind::i32: return twice(0x8A000000U | n);
    case element_kind::i16: return twice((0x8000U | n) * 0x10001U);
    case element_kind::i8: return ~std::uint64_t{0};
    case element_kind::unknown: break;
  }
  return 0xFFFAFFFAFFFAFFFAU;
}

/// The owner that a number names: all of it (`exact`), or the lowest six bits (`narrow`), which is what fits into bf16
/// and fp16. 0 where it names none.
struct named_owner {
  std::uint16_t exact = 0;   ///< the owner
  std::uint16_t narrow = 0;  ///< its lowest six bits
};
/// The owner in the payload of a NaN, which may have been made of a float or of a narrower number.
[[nodiscard]] constexpr named_owner owner_in_bits(std::uint64_t of_double) noexcept {
  if ((of_double & 0x7FF8000000000000U) != 0x7FF8000000000000U || (of_double & 0x1FFFFFFFU) != 0) return {};
  const auto payload = static_cast<std::uint32_t>(of_double >> 29 & 0x3FFFFFU);
  const std::uint32_t low = payload & 0xFFFFU, six = payload >> 16;
  if ((low & 0xFFC0U) == 0xA000U) return {static_cast<std::uint16_t>((low & 63U) << 6 | six), 0};
  return {0, low == 0 ? static_cast<std::uint16_t>(six) : std::uint16_t{0}};
}
/// The owner in a number that may be such a NaN.
[[nodiscard]] constexpr named_owner owner_in(double value) noexcept {
  return owner_in_bits(__builtin_bit_cast(std::uint64_t, value));
}
/// The owner in an integer of 32 or 64 bits that is out of range.
[[nodiscard]] constexpr named_owner owner_in_integer(std::int64_t value) noexcept {
  const auto bits = static_cast<std::uint64_t>(value);
  const bool wide = bits >> 12 == 0x8A00000000000000U >> 12;
  const bool word = (bits >> 32 == 0xFFFFFFFFU || bits >> 32 == 0) && (bits & 0xFFFFFFFFU) >> 12 == 0x8A000000U >> 12;
  return {wide || word ? static_cast<std::uint16_t>(bits & lease_mark::most_owners) : std::uint16_t{0}, 0};
}

/// How much of a lease is overwritten: all of it, or of one of more than 8 KiB the first 64 of each 512 bytes, which
/// whoever reads a row of it meets and which costs an eighth.
enum class poison_density : std::uint8_t { every_byte, some_of_each_row };

/// Overwrites ranges of whole lines of 64 bytes, as leases are: by one call where a stream runs on the host, by one
/// call for each word of 8 bytes on a device.
class poisoned_ranges {
 public:
  /// Ranges of one call; bytes of a line; from how many bytes on a range may be overwritten in part, and then each how
  /// manieth line is.
  static constexpr std::size_t most = 12, line_bytes = 64, sparse_from = 8192, sparse_lines = 8;

  /// Where there is room; of more than a range can be it takes a part. How many bytes it has taken.
  std::size_t add(std::byte* first, std::size_t bytes, lease_mark mark, poison_density how) noexcept {
    constexpr std::size_t largest = std::size_t{0xFFFFFFF8U} * line_bytes;
    const std::size_t taken = bytes < largest ? bytes : largest, lines = taken / line_bytes;
    const bool sparse = how == poison_density::some_of_each_row && bytes > sparse_from;
    const std::size_t written = sparse ? (lines + sparse_lines - 1) / sparse_lines : lines;
    firsts_[count_] = reinterpret_cast<std::uint64_t*>(first);
    lines_[count_] = static_cast<std::uint32_t>(written);
    marks_[count_] = mark.bits;
    steps_[count_++] = static_cast<std::uint16_t>(sparse ? sparse_lines : 1);
    return taken;
  }
  /// Whether there is no room for another range.
  [[nodiscard]] bool full() const noexcept { return count_ == most; }
  /// Whether there is no range.
  [[nodiscard]] bool empty() const noexcept { return count_ == 0; }
  /// Words of 8 bytes that are written.
  [[nodiscard]] std::size_t words() const noexcept {
    std::size_t all = 0;
    for (std::size_t r = 0; r < count_; ++r) all += std::size_t{lines_[r]} * words_of_line;
    return all;
  }

  /// Overwrites all of it.
  BELAY_HD void operator()() const noexcept {
    for (std::size_t r = 0; r < count_; ++r) {
      const std::uint64_t what = poison_of(mark_of(r));
      const std::size_t step = steps_[r] * words_of_line;
      std::uint64_t* at = firsts_[r];
      for (std::uint32_t line = 0; line < lines_[r]; ++line, at += step)
        at[0] = what, at[1] = what, at[2] = what, at[3] = what, at[4] = what, at[5] = what, at[6] = what, at[7] = what;
    }
  }
  /// Overwrites one word of `words()`.
  BELAY_HD void operator()(std::size_t word) const noexcept {
    for (std::size_t r = 0; r < count_; ++r) {
      const std::size_t words = std::size_t{lines_[r]} * words_of_line;
      if (word < words) {
        const std::size_t line = word / words_of_line * steps_[r];
        firsts_[r][line * words_of_line + word % words_of_line] = poison_of(mark_of(r));
        return;
      }
      word -= words;
    }
  }

 private:
  static constexpr std::size_t words_of_line = line_bytes / sizeof(std::uint64_t);
  [[nodiscard]] BELAY_HD lease_mark mark_of(std::size_t range) const noexcept {
    lease_mark out;
    out.bits = marks_[range];
    return out;
  }

  // By range. All of it is written, so that nothing else of the host goes to a device.
  std::uint64_t* firsts_[most] = {};
  std::uint32_t lines_[most] = {};  // that are written
  std::uint16_t marks_[most] = {};
  std::uint16_t steps_[most] = {};  // from one line to the next
  std::size_t count_ = 0;
};

/// Bytes of a region that nobody may touch, where an address sanitizer looks: told by `close` and `open`. All of the
/// region may be touched again when this ends.
class closed_addresses {
 public:
  /// Of no region, or of one that is open.
  closed_addresses() = default;
  /// Of that region, which is open.
  closed_addresses(const std::byte* first, std::size_t bytes) noexcept : first_(first), bytes_(bytes) {}
  /// Takes the region of another.
  closed_addresses(closed_addresses&& other) noexcept : first_(other.first_), bytes_(other.bytes_) { other.bytes_ = 0; }
  /// As the constructor, once its own region is open.
  closed_addresses& operator=(closed_addresses&& other) noexcept {
    if (this == &other) return *this;
    open(first_, bytes_);
    first_ = other.first_, bytes_ = other.bytes_;
    other.bytes_ = 0;
    return *this;
  }
  ~closed_addresses() { open(first_, bytes_); }

  /// Whether there is a region.
  [[nodiscard]] bool watching() const noexcept { return bytes_ > 0; }
  /// From here on nobody may touch these bytes. Does nothing without an address sanitizer.
  static void close([[maybe_unused]] const void* first, [[maybe_unused]] std::size_t bytes) noexcept {
    if constexpr (address_sanitizer) __asan_poison_memory_region(first, bytes);
  }
  /// From here on they may be touched.
  static void open([[maybe_unused]] const void* first, [[maybe_unused]] std::size_t bytes) noexcept {
    if constexpr (address_sanitizer)
      if (bytes > 0) __asan_unpoison_memory_region(first, bytes);
  }

 private:
  const std::byte* first_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace belay::inline BELAY_ABI
