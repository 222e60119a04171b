// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Live bytes of every tier over the whole run, as an SVG that needs nothing else to be shown. Samples are kept in
// memory of fixed size. When it is full, neighbouring samples are merged into one with the larger bytes, so no peak is
// lost.
//
//   belay::memory_picture picture({"device", "host"});
//   picture.add(seconds, live_bytes);  // allocates nothing
//   picture.write("memory.svg");
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/where.hpp"
#include "belay/report/output.hpp"
#include "belay/report/text_buffer.hpp"
#include "belay/train/plan_table.hpp"

namespace belay::inline BELAY_ABI {

class memory_picture {
 public:
  /// Allocates memory for `capacity` samples of all `tiers`; add() allocates nothing.
  explicit memory_picture(std::vector<std::string> tiers, std::size_t capacity = 1024)
      : tiers_(std::move(tiers)),
        capacity_(capacity < 2 ? 2 : capacity / 2 * 2),
        samples_(capacity_ * tiers_.size()),
        peaks_(tiers_.size()) {}

  /// Adds the live bytes of all tiers at `seconds` since the start; times must not go back.
  void add(double seconds, std::span<const std::uint64_t> live, where at = where::current()) {
    if (live.size() != tiers_.size()) throw usage_error("a memory sample needs the bytes of every tier", at);
    if (pending_ == 0) {
      if (size_ == capacity_) halve();
      ++size_;
    }
    for (std::size_t tier = 0; tier < tiers_.size(); ++tier) {
      const sample now{seconds, live[tier]};
      if (now.bytes > peaks_[tier].bytes) peaks_[tier] = now;
      sample& kept = samples_[(size_ - 1) * tiers_.size() + tier];
      if (pending_ == 0) kept = now;  // a new sample
      if (now.bytes > kept.bytes) kept.bytes = now.bytes;
    }
    pending_ = (pending_ + 1) % each_;
    last_ = seconds;
  }

  /// Samples kept, and the number of added samples that each of them stands for.
  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  [[nodiscard]] std::size_t samples_each() const noexcept { return each_; }
  [[nodiscard]] std::uint64_t peak(std::size_t tier) const { return peaks_.at(tier).bytes; }

  /// The picture: time to the right, bytes upwards, a line and a marked peak for each tier.
  [[nodiscard]] std::string svg() const {
    std::uint64_t largest = 1;
    for (const sample& peak : peaks_) {
      if (peak.bytes > largest) largest = peak.bytes;
    }
    const double end = last_ > 0 ? last_ : 1;
    const auto x = [end](double seconds) { return text(left + seconds / end * width); };
    const auto y = [largest](std::uint64_t bytes) {
      return text(top + height - static_cast<double>(bytes) / static_cast<double>(largest) * height);
    };
    std::string out =
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 960 400\" font-family=\"sans-serif\" "
        "font-size=\"12\">\n<title>Live bytes over time</title>\n<rect width=\"960\" height=\"400\" fill=\"white\"/>\n";
    for (unsigned i = 0; i <= 4; ++i) {
      const std::uint64_t level = largest / 4 * i + largest % 4 * i / 4;
      out += "<path d=\"M" + x(0) + " " + y(level) + "H" + x(end) + "\" stroke=\"#ddd\"/><text x=\"" + text(left - 8) +
             "\" y=\"" + y(level) + "\" text-anchor=\"end\">" + bytes_text(level) + "</text>\n";
      out += "<text x=\"" + x(end * i / 4) + "\" y=\"" + text(top + height + 20) + "\" text-anchor=\"middle\">" +
             text(end * i / 4) + " s</text>\n";
    }
    for (std::size_t tier = 0; tier < tiers_.size(); ++tier) {
      const std::string colour = colours[tier % 4];
      out += "<polyline fill=\"none\" stroke=\"" + colour + "\" stroke-width=\"1.5\" points=\"";
      std::uint64_t last_bytes = 0;
      for (std::size_t i = 0; i < size_; ++i) {
        const sample& kept = samples_[i * tiers_.size() + tier];
        out += x(kept.seconds) + "," + y(kept.bytes) + " ";
        last_bytes = kept.bytes;
      }
      out += x(last_) + "," + y(last_bytes) + "\"/>\n";
      out += "<circle cx=\"" + x(peaks_[tier].seconds) + "\" cy=\"" + y(peaks_[tier].bytes) + "\" r=\"4\" fill=\"" +
             colour + "\"/><text x=\"" + text(left + 20 + 280.0 * static_cast<double>(tier)) + "\" y=\"20\" fill=\"" +
             colour + "\">" + escaped(tiers_[tier]) + ": peak " + bytes_text(peaks_[tier].bytes) + " (" +
             std::to_string(peaks_[tier].bytes) + " bytes)</text>\n";
    }
    return out + "</svg>\n";
  }

  /// Writes the picture to `path`.
  void write(const std::string& path) const { output(path).write(svg()); }

 private:
  struct sample {
    double seconds = 0;
    std::uint64_t bytes = 0;
  };
  static constexpr double left = 90;
  static constexpr double top = 40;
  static constexpr double width = 840;
  static constexpr double height = 310;
  static constexpr const char* colours[4] = {"#1f77b4", "#d62728", "#2ca02c", "#9467bd"};

  void halve() noexcept {
    for (std::size_t i = 0; i < size_ / 2; ++i) {
      for (std::size_t tier = 0; tier < tiers_.size(); ++tier) {
        const sample first = samples_[2 * i * tiers_.size() + tier];
        const sample second = samples_[(2 * i + 1) * tiers_.size() + tier];
        samples_[i * tiers_.size() + tier] = {first.seconds, first.bytes > second.bytes ? first.bytes : second.bytes};
      }
    }
    size_ /= 2;
    each_ *= 2;
  }

  [[nodiscard]] static std::string text(double value) {
    char room[64];
    text_buffer buffer(room);
    return std::string(buffer.put_fixed(value, 1).text());
  }

  [[nodiscard]] static std::string escaped(std::string_view name) {
    std::string out;
    for (char c : name) {
      if (c == '<') {
        out += "&lt;";
      } else if (c == '&') {
        out += "&amp;";
      } else {
        out += c;
      }
    }
    return out;
  }

  std::vector<std::string> tiers_;
  std::size_t capacity_;
  std::vector<sample> samples_;  // [sample][tier]
  std::vector<sample> peaks_;
  std::size_t size_ = 0;
  std::size_t each_ = 1;     // added samples for each that is kept
  std::size_t pending_ = 0;  // added samples in the last one; 0 where it is full
  double last_ = 0;
};

}  // namespace belay::inline BELAY_ABI
