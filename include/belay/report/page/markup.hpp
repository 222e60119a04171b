// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The text of a page: markup as it is, texts escaped, numbers for readers and coordinates for pictures. Nothing is
// allocated.
// IWYU pragma: private, include "belay/report/page.hpp"
#pragma once

#include <charconv>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "belay/core/config.hpp"
#include "belay/core/printable.hpp"
#include "belay/core/utf8.hpp"
#include "belay/report/text_buffer.hpp"

namespace belay::inline BELAY_ABI {

/// How the numbers of a picture are written.
enum class page_unit : std::uint8_t { number, share, bytes };

/// The range of an axis, and its ticks: low, low + step, ... high.
struct page_axis {
  double low = 0;
  double high = 1;
  double step = 0.25;
  page_unit unit = page_unit::number;

  /// A range that holds both, with steps that are easy to read.
  [[nodiscard]] static page_axis around(double low, double high, page_unit unit) noexcept {
    if (!(high > low)) {
      const double pad = high == 0 ? 1 : std::abs(high) / 4;
      low = low >= 0 && low < pad ? 0 : low - pad;
      high += pad;
    }
    const double raw = (high - low) / 4;
    double step = std::exp2(std::ceil(std::log2(raw)));
    if (unit != page_unit::bytes) {
      const double power = std::pow(10.0, std::floor(std::log10(raw)));
      const double digits = raw / power;
      step = power * (digits <= 1 ? 1 : digits <= 2 ? 2 : digits <= 2.5 ? 2.5 : digits <= 5 ? 5 : 10);
    }
    return {std::floor(low / step) * step, std::ceil(high / step) * step, step, unit};
  }
  /// 0 to 1, upwards.
  [[nodiscard]] double share(double value) const noexcept { return (value - low) / (high - low); }
  [[nodiscard]] int ticks() const noexcept { return static_cast<int>(std::lround((high - low) / step)) + 1; }
  [[nodiscard]] double tick(int number) const noexcept {
    const double value = low + step * number;
    return std::abs(value) < step / 1e6 ? 0 : value;
  }
};

class page_markup {
 public:
  explicit page_markup(text_buffer& out) noexcept : out_(&out) {}

  page_markup& operator<<(std::string_view markup) noexcept {
    out_->put(markup);
    return *this;
  }
  template <std::integral T>
  page_markup& operator<<(T value) noexcept {
    out_->put(value);
    return *this;
  }

  /// A text as it is read: markup, control characters and bytes that are no UTF-8 are not obeyed. Newlines stay. At
  /// most `most` bytes of it, and "..." where there was more.
  page_markup& text(std::string_view text, std::size_t most = 400) noexcept {
    const std::size_t end = text.size() > most ? most : text.size();
    for (std::size_t at = 0; at < end;) {
      const std::size_t length = utf8_length(text.substr(at));
      const std::string_view one = text.substr(at, length == 0 ? 1 : length);
      at += one.size();
      if (length == 0 || (one != "\n" && is_control(utf8_code_point(one)))) {
        out_->put("\xef\xbf\xbd");
        continue;
      }
      switch (one.front()) {
        case '&': out_->put("&amp;"); break;
        case '<': out_->put("&lt;"); break;
        case '>': out_->put("&gt;"); break;
        case '"': out_->put("&quot;"); break;
        case '\'': out_->put("&#39;"); break;
        default: out_->put(one);
      }
    }
    if (end < text.size()) out_->put("...");
    return *this;
  }

  /// A coordinate or percentage: one digit after the point at most.
  page_markup& place(double value) noexcept {
    const auto tenths = static_cast<long long>(std::llround(value * 10));
    if (tenths < 0) out_->put('-');
    const long long all = tenths < 0 ? -tenths : tenths;
    out_->put(all / 10);
    if (all % 10 != 0) out_->put('.').put(all % 10);
    return *this;
  }

  /// A number for readers, with `digits` significant ones.
  page_markup& number(double value, int digits = 4) noexcept {
    const double size = std::abs(value);
    if (size >= 99999.5 && size < 1e15) {
      const int kind = size < 999999.5 ? 0 : size < 999999999.5 ? 1 : size < 999999999999.5 ? 2 : 3;
      constexpr double units[] = {1e3, 1e6, 1e9, 1e12};
      return general(value / units[kind], digits) << std::string_view("kMGT").substr(static_cast<std::size_t>(kind), 1);
    }
    if (size >= 1e15) {  // of no use to anybody, and no wider than others
      general(value, digits < 3 ? digits : 3);
      return *this;
    }
    if (size >= 1000) {
      out_->put_fixed(value, 0);
      return *this;
    }
    return general(value, digits);
  }
  page_markup& share(double value, int digits = 3) noexcept {
    return (value > 10 ? number(100 * value, digits) : general(100 * value, digits)) << " %";
  }
  page_markup& bytes(double value, int digits = 4) noexcept {
    constexpr std::string_view units[] = {" B", " KiB", " MiB", " GiB", " TiB", " PiB", " EiB"};
    std::size_t unit = 0;
    for (; value >= 1024 && unit < 6; ++unit) value /= 1024;
    return general(value, value >= 1000 && digits < 4 ? 4 : digits) << units[unit];
  }
  /// A time that is known in seconds.
  page_markup& seconds(double value) noexcept {
    return value < 1 ? number(1e3 * value, 3) << " ms" : number(value, 3) << " s";
  }
  page_markup& value(double value, page_unit unit, int digits = 4) noexcept {
    switch (unit) {
      case page_unit::share: return share(value, digits);
      case page_unit::bytes: return bytes(value, digits);
      case page_unit::number: break;
    }
    return number(value, digits);
  }

 private:
  page_markup& general(double value, int digits) noexcept {
    char room[40];
    const auto end = std::to_chars(room, room + sizeof room, value, std::chars_format::general, digits);
    out_->put(std::string_view(room, static_cast<std::size_t>(end.ptr - room)));
    return *this;
  }

  text_buffer* out_;
};

}  // namespace belay::inline BELAY_ABI
