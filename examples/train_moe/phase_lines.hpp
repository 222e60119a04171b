// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The JSON line of every evaluation, rollout and transition. Numbers are those of all ranks. All memory is made once.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "belay/comm/reduction.hpp"
#include "belay/device/tier.hpp"
#include "belay/parallel/gathers.hpp"
#include "belay/report/text_buffer.hpp"
#include "belay/step/phase.hpp"
#include "belay/train/phase_switch.hpp"

namespace train_moe {

class phase_lines {
 public:
  /// Lines have `texts` bytes of text at most, before JSON's escapes.
  explicit phase_lines(std::size_t texts, std::size_t data_ranks) : room_(2048 + 6 * texts + 24 * data_ranks, ' ') {
    numbers_.reserve(64);
  }

  // Each returns the line, with its newline, until the next call; the counts are summed over the ranks of `world`, and
  // bytes are the largest rank's. Collective over it.

  template <class World>
  [[nodiscard]] std::string_view evaluation(const World& world, std::size_t number, std::size_t after_step, double loss,
                                            const belay::gather_counts& counts) {
    belay::json_line line(room_);
    line.field("phase", name(belay::phase::eval)).field("eval", number).field("after_step", after_step);
    return gathers(world, line.field("loss", loss), counts);
  }

  template <class World>
  [[nodiscard]] std::string_view rollout(const World& world, std::size_t number, std::size_t after_step,
                                         std::span<const std::size_t> lengths, std::span<const char> text,
                                         const belay::gather_counts& counts) {
    belay::json_line line(room_);
    line.field("phase", name(belay::phase::rollout)).field("rollout", number).field("after_step", after_step);
    line.array("lengths", lengths).field("text", std::string_view(text.data(), text.size()));
    return gathers(world, line, counts);
  }

  template <class World>
  [[nodiscard]] std::string_view transition(const World& world, const belay::transition& found) {
    using belay::tier;
    std::vector<double>& all = numbers_;
    all.clear();
    for (const tier of : tiers) {
      all.push_back(static_cast<double>(found.live_before[index(of)]));
      all.push_back(static_cast<double>(found.live_after[index(of)]));
      all.push_back(static_cast<double>(found.grown[index(of)]));
    }
    all.push_back(static_cast<double>(found.resident_before));
    all.push_back(static_cast<double>(found.resident_after));
    for (const belay::drained& each : found.given_back) all.push_back(static_cast<double>(each.bytes));
    for (const belay::drained& each : found.taken) all.push_back(static_cast<double>(each.bytes));
    world.all_reduce(std::span<double>(all), belay::maximum);

    belay::json_line line(room_);
    line.open_object("transition").field("from", name(found.from)).field("to", name(found.to)).close();
    line.field("after_step", found.after_step);
    const char* const fields[] = {"live_bytes_before", "live_bytes_after", "grown_bytes"};
    for (std::size_t f = 0; f < std::size(fields); ++f) {
      line.open_object(fields[f]);
      for (std::size_t t = 0; t < std::size(tiers); ++t)
        line.field(name(tiers[t]), static_cast<std::int64_t>(all[t * std::size(fields) + f]));
      line.close();
    }
    const double* rest = all.data() + std::size(fields) * std::size(tiers);
    line.field("resident_bytes_before", static_cast<std::uint64_t>(*rest++));
    line.field("resident_bytes_after", static_cast<std::uint64_t>(*rest++));
    line.open_object("drained");
    for (const belay::drained& each : found.given_back) line.field(each.what, static_cast<std::uint64_t>(*rest++));
    line.close().open_object("returned");
    for (const belay::drained& each : found.taken) line.field(each.what, static_cast<std::uint64_t>(*rest++));
    return line.close().finish();
  }

 private:
  static constexpr std::array tiers{belay::tier::device, belay::tier::pinned, belay::tier::host, belay::tier::file};
  static constexpr std::size_t index(belay::tier of) noexcept { return static_cast<std::size_t>(of); }

  template <class World>
  [[nodiscard]] std::string_view gathers(const World& world, belay::json_line& line, const belay::gather_counts& own) {
    std::array<std::uint64_t, 2> counts{own.missed, own.prefetched};
    std::array<std::uint64_t, 1> bytes{own.peak_bytes};
    world.all_reduce(std::span<std::uint64_t>(counts), belay::sum);
    world.all_reduce(std::span<std::uint64_t>(bytes), belay::maximum);
    line.field("plan_misses", counts[0]).field("prefetch_hits", counts[1]).field("gathered_bytes_peak", bytes[0]);
    return line.finish();
  }

  std::string room_;
  std::vector<double> numbers_;
};

}  // namespace train_moe
