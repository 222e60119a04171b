// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The text of a page: markup as it is, texts escaped, numbers for readers and coordinates for pictures. Nothing is
// allocated.
// IWYU pragma: private, include "belay/report/page.hpp"
#pragma once

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "belay/core/bounds.hpp"
#include "belay/core/config.hpp"
#include "belay/core/printable.hpp"
#include "belay/report/page/history.hpp"
#include "belay/report/page/sample.hpp"
#include "belay/report/text_buffer.hpp"

namespace belay::inline BELAY_ABI {

/// Which purposes of a tier have a colour of their own: the largest of the plan. A purpose has one colour, whatever the
/// tier and the picture; where all tiers together have more purposes than there are colours, some share one, but never
/// in one picture.
class tier_colours {
 public:
  static constexpr std::size_t most = 8;   // of a tier
  static constexpr std::size_t rest = 9;   // of what has none
  static constexpr std::size_t none = 99;  // of no picture

  explicit tier_colours(const report_subject& subject) noexcept
      : subject_(&subject), rows_(lesser_of(subject.memory.size(), report_history::most_rows)) {
    colours_.fill(none);
    for (std::size_t first = 0, end = 0; first < rows_; first = end) {
      while (end < rows_ && at(end).tier == at(first).tier) ++end;
      for (std::size_t row = first; row < end; ++row)
        if (is_large(row)) inherit(row);
      for (std::size_t row = first; row < end; ++row)
        if (is_large(row) && colours_[row] == none) choose(row);
    }
  }

  /// Of row `row` of the subject's memory; `none` where it has none.
  [[nodiscard]] std::size_t of(std::size_t row) const noexcept { return row < rows_ ? colours_[row] : none; }

 private:
  // 8 and 9 are those of lines and of the rest.
  static constexpr std::array<std::size_t, 12> all{0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12, 13};

  [[nodiscard]] const report_row& at(std::size_t row) const noexcept { return subject_->memory[row]; }

  // Whether less than `most` rows of its tier have more bytes in the plan.
  [[nodiscard]] bool is_large(std::size_t row) const noexcept {
    std::size_t larger = 0;
    for (std::size_t other = 0; other < subject_->memory.size(); ++other) {
      const std::uint64_t planned = at(other).planned;
      if (at(other).tier == at(row).tier && (planned > at(row).planned || (planned == at(row).planned && other < row)))
        ++larger;
    }
    return larger < most;
  }
  // The colour that its purpose has in a tier before.
  void inherit(std::size_t row) noexcept {
    for (std::size_t before = 0; before < row; ++before)
      if (at(before).purpose == at(row).purpose && colours_[before] != none && !tier_has(row, colours_[before])) {
        colours_[row] = colours_[before];
        return;
      }
  }
  // The first that no tier has, or else the first that this one has not.
  void choose(std::size_t row) noexcept {
    for (const std::size_t colour : all)
      if (std::find(colours_.begin(), colours_.end(), colour) == colours_.end()) {
        colours_[row] = colour;
        return;
      }
    for (const std::size_t colour : all)
      if (!tier_has(row, colour)) {
        colours_[row] = colour;
        return;
      }
  }
  [[nodiscard]] bool tier_has(std::size_t row, std::size_t colour) const noexcept {
    for (std::size_t other = 0; other < rows_; ++other)
      if (at(other).tier == at(row).tier && colours_[other] == colour) return true;
    return false;
  }

  const report_subject* subject_;
  std::size_t rows_;
  std::array<std::size_t, report_history::most_rows> colours_{};  // by row
};

// How a report page looks: light and dark as the reader's system says, one column on a narrow screen.

inline constexpr std::string_view page_style = R"css(
:root{color-scheme:light dark;--back:#f5f6f7;--card:#fff;--ink:#1b1f24;--soft:#5a636e;--line:#e2e5e9;--bad:#c4302b;
--fine:#2b6cc4;
--c0:#2b6cc4;--c1:#d2601a;--c2:#2c8f5b;--c3:#8a56c2;--c4:#b88a00;--c5:#1591a5;--c6:#c8437f;--c7:#7b6a56;
--c8:#3a424b;--c9:#a9b1ba;--c10:#8fb4e3;--c11:#e9b48c;--c12:#9a3b3b;--c13:#93c47d;
--h0:#1d5fa8;--h1:#6ba3d6;--h2:#b9d5ec;--h3:#eceef0;--h4:#fbdcb5;--h5:#f5b06a;--h6:#e67e3c;--h7:#c84a26;
--h8:#8c1f1f}
@media (prefers-color-scheme:dark){:root{--back:#121519;--card:#1b2026;--ink:#e8ebee;--soft:#9ba5b0;--line:#2f363e;
--bad:#ff7b72;--fine:#6aa9f5;
--c0:#6aa9f5;--c1:#f0914e;--c2:#5cc48d;--c3:#b78ee8;--c4:#d9b13b;--c5:#4fc0d3;--c6:#ef82b0;--c7:#b7a48c;
--c8:#d3d9df;--c9:#66707b;--c10:#3f6fb5;--c11:#a8683a;--c12:#e06666;--c13:#7fae5f;
--h0:#79b8f5;--h1:#4583bd;--h2:#2d5478;--h3:#2b3138;--h4:#5f452c;--h5:#96602a;--h6:#cd7b33;--h7:#ee8f62;
--h8:#ffb3a3}}
*{box-sizing:border-box}
body{margin:0;background:var(--back);color:var(--ink);font:14px/1.45 system-ui,-apple-system,"Segoe UI",sans-serif;
overflow-wrap:anywhere}
main{max-width:1248px;margin:0 auto;padding:16px}
h1{font-size:22px;margin:0 0 4px}
h2{font-size:16px;margin:24px 0 8px}
p{margin:4px 0}
small,.note,.soft{color:var(--soft)}
.bad{color:var(--bad);white-space:pre-line}
.bad:empty{display:none}
.tiles{display:grid;grid-template-columns:repeat(auto-fill,minmax(140px,1fr));gap:8px;margin:12px 0}
.tiles div,figure,.card{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:10px 12px;
margin:0;min-width:0}
.tiles b{display:block;font-size:18px;font-variant-numeric:tabular-nums}
.tiles span{color:var(--soft);font-size:12px}
.two{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,460px),1fr));gap:12px}
.two+figure{margin-top:12px}
td.soft{min-width:11em}
figcaption{display:flex;flex-wrap:wrap;gap:2px 14px;align-items:baseline;margin-bottom:8px}
.key,.tiles b,td{font-variant-numeric:tabular-nums}
.key{font-size:12px;color:var(--soft)}
.key::before{content:"";display:inline-block;width:14px;height:0;border-top:2px solid var(--c);
vertical-align:middle;margin-right:5px}
.key.area::before{height:10px;border:0;border-radius:2px;background:var(--c)}
.key.dashed::before{border-top-style:dashed}
.plot{position:relative;padding:9px 4px 22px 66px}
.plot svg{display:block;width:100%;height:190px;overflow:visible}
.plot.heat svg{height:clamp(96px,calc(var(--rows)*7px),420px)}
.plot.heat .grid{stroke:var(--card);stroke-width:2px}
.x,.y{position:absolute;font-size:11px;color:var(--soft);font-variant-numeric:tabular-nums}
.y{left:0;top:9px;bottom:22px;width:60px}
.y span{position:absolute;right:0;transform:translateY(-50%);white-space:nowrap}
.x{left:66px;right:4px;bottom:0;height:18px}
.x span{position:absolute;transform:translateX(-50%);white-space:nowrap}
.x .start{transform:none}
.x .end{transform:translateX(-100%)}
path{fill:none;stroke:var(--c);vector-effect:non-scaling-stroke;stroke-linejoin:round}
path.grid{stroke:var(--line);stroke-width:1px}
path.line{stroke-width:1.7px}
path.dashed{stroke-dasharray:6 4}
path.dot{stroke-width:8px;stroke-linecap:round}
path.band{fill:var(--c);stroke:none;opacity:.2}
path.area{fill:var(--c);stroke:none;opacity:.8}
path.cell{stroke-width:1;vector-effect:none;stroke-linejoin:miter;shape-rendering:crispEdges}
path.lane{stroke:var(--line);stroke-width:1px}
path.mark{stroke-width:2px}
path.mark.bad{stroke:var(--bad)}
path.mark.fine{stroke:var(--fine)}
.lanes{display:grid;grid-template-columns:max-content 1fr;gap:6px 12px;align-items:center;background:var(--card);
border:1px solid var(--line);border-radius:8px;padding:10px 12px}
.lanes svg{display:block;width:100%;height:16px}
.schedules{display:grid;grid-template-columns:max-content 1fr;gap:10px 12px;align-items:center}
.plot.stages{padding:2px 4px 2px 66px}
.plot.stages .y{top:2px;bottom:2px}
.plot.timed{padding-bottom:22px}
.plot.timed .y{bottom:22px}
.plot.stages svg{height:clamp(48px,calc(var(--rows)*22px),352px)}
path.action{fill:var(--c);stroke:var(--card);stroke-width:1px}
path.later{fill-opacity:.6}
.bars{display:grid;grid-template-columns:max-content 1fr max-content;gap:5px 12px;align-items:center}
.bars i{display:block;height:10px;border-radius:2px;background:var(--c0)}
.bars div{background:var(--line);border-radius:2px}
table{border-collapse:collapse;width:100%;font-size:13px}
th,td{text-align:left;padding:3px 8px 3px 0;border-bottom:1px solid var(--line);vertical-align:top}
td.n,th.n{text-align:right;padding-left:6px}
td.n{white-space:nowrap}
th{color:var(--soft);font-weight:500}
pre{white-space:pre-wrap;margin:0;font:12.5px/1.5 ui-monospace,monospace}
@media (max-width:600px){main{padding:10px}.x .odd{display:none}.tiles{grid-template-columns:repeat(2,1fr)}
.plot,.plot.stages{padding-left:60px}.schedules{grid-template-columns:1fr}.x{left:60px}.y{width:54px}}
)css";

/// Classes of colours: what they mean to the rules above.
inline constexpr std::string_view page_colours =
    ".c0{--c:var(--c0)}.c1{--c:var(--c1)}.c2{--c:var(--c2)}.c3{--c:var(--c3)}.c4{--c:var(--c4)}.c5{--c:var(--c5)}"
    ".c6{--c:var(--c6)}.c7{--c:var(--c7)}.c8{--c:var(--c8)}.c9{--c:var(--c9)}"
    ".c10{--c:var(--c10)}.c11{--c:var(--c11)}.c12{--c:var(--c12)}.c13{--c:var(--c13)}"
    ".h0{--c:var(--h0)}.h1{--c:var(--h1)}.h2{--c:var(--h2)}.h3{--c:var(--h3)}.h4{--c:var(--h4)}.h5{--c:var(--h5)}"
    ".h6{--c:var(--h6)}.h7{--c:var(--h7)}.h8{--c:var(--h8)}\n";

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
