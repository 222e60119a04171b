// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Schedules as --schedule names them, and laid out on the ranks of a pipeline: where the stages of the cut lie, what
// each rank keeps at most, and how long it all takes.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "belay/parallel/schedule.hpp"

namespace belay_plan {

/// A schedule of the library by its name, or a table of one's own.
struct schedule_word {
  std::string name = "1f1b";                                    // as it was given: a name, auto, greedy, a file
  std::shared_ptr<const belay::schedule::dynamic_table> table;  // of a file, or of the greedy schedule

  [[nodiscard]] bool operator==(const schedule_word&) const = default;

  /// Whether it stands for a choice that has not been made.
  [[nodiscard]] bool is_chosen() const noexcept { return name == "auto" || (name == "greedy" && !table); }

  /// Where its stages lie; of a table, how many they are.
  [[nodiscard]] std::size_t chunks() const {
    return table ? table->chunks() : belay::schedule::named_schedule::of(name).placed().chunks;
  }
  /// The fewest micro-batches that it has on `ranks`.
  [[nodiscard]] std::size_t least_micro_batches(std::size_t ranks) const {
    return table ? table->micro_batches() : belay::schedule::named_schedule::of(name).least_micro_batches(ranks);
  }
  /// Its table on `ranks`, for a chart.
  [[nodiscard]] belay::schedule::dynamic_table of(std::size_t ranks, std::size_t micro_batches) const {
    return table ? *table : belay::schedule::named_table(name, ranks, micro_batches);
  }
};

/// A schedule on `ranks` ranks. One of very many micro-batches is laid out with fewer: the others take as long as those
/// in its middle.
class laid_schedule {
 public:
  laid_schedule(schedule_word of, std::size_t ranks, std::size_t micro_batches)
      : word_(std::move(of)),
        micro_batches_(micro_batches),
        played_(played(word_, ranks, micro_batches)),
        lists_(lists(word_, ranks, played_)) {
    if (played_ < micro_batches_) fewer_.emplace(lists(word_, ranks, fewer(word_, ranks, played_)));
    held_.resize(ranks);
    for (std::size_t rank = 0; rank < ranks; ++rank) find_held(rank);
  }

  [[nodiscard]] bool is(const schedule_word& word, std::size_t ranks, std::size_t micro_batches) const {
    return word_ == word && this->ranks() == ranks && micro_batches_ == micro_batches;
  }
  [[nodiscard]] std::size_t ranks() const noexcept { return lists_.ranks(); }
  [[nodiscard]] std::size_t chunks() const noexcept { return lists_.chunks(); }
  [[nodiscard]] std::size_t stages() const noexcept { return lists_.stages(); }
  [[nodiscard]] std::size_t stage(std::size_t rank, std::size_t chunk) const noexcept {
    return lists_.stage(rank, chunk);
  }
  [[nodiscard]] std::size_t rank_of(std::size_t stage) const noexcept { return lists_.rank_of(stage); }
  /// The stages of a rank: "3", or "0, 7".
  [[nodiscard]] std::string stages_text(std::size_t rank) const {
    std::string out;
    for (std::size_t chunk = 0; chunk < chunks(); ++chunk)
      out += (chunk == 0 ? "" : ", ") + std::to_string(stage(rank, chunk));
    return out;
  }
  /// Whether its backwards are in two halves, so that what is kept waits for the second one.
  [[nodiscard]] bool splits_backwards() const noexcept { return splits_; }

  /// The most that a rank keeps at one time, where a micro-batch of stage s has `size(s)` from its forward to its whole
  /// backward, or to its weight gradient.
  template <class Size>
  [[nodiscard]] double most(std::size_t rank, const Size& size) const {
    double out = 0;
    for (const std::vector<std::size_t>& counts : held_[rank]) {
      double now = 0;
      for (std::size_t chunk = 0; chunk < counts.size(); ++chunk)
        now += static_cast<double>(counts[chunk]) * size(stage(rank, chunk));
      out = std::max(out, now);
    }
    return out;
  }

  /// The time of all micro-batches where messages wait for nobody, in the unit of the costs.
  template <class Costs>
  [[nodiscard]] double time(const Costs& costs) const {
    const auto all = static_cast<double>(cost_of(lists_, costs).total);
    if (!fewer_) return all;
    const auto less = static_cast<double>(cost_of(*fewer_, costs).total);
    const auto between = static_cast<double>(played_ - fewer_->micro_batches());
    return all + (all - less) / between * static_cast<double>(micro_batches_ - played_);
  }
  /// The share of that time in which a rank does not compute, mean over ranks.
  template <class Costs>
  [[nodiscard]] double idle(const Costs& costs) const {
    double busy = 0;
    for (std::size_t stage = 0; stage < stages(); ++stage) {
      const belay::schedule::stage_costs& each = costs.stage(stage);
      busy += static_cast<double>(each.forward + each.input_gradient + each.weight_gradient);
    }
    const double total = time(costs);
    if (!(total > 0)) return 0;
    return 1 - busy * static_cast<double>(micro_batches_) / (total * static_cast<double>(ranks()));
  }

 private:
  static constexpr std::size_t most_cells = 65'536;  // stages times micro-batches that are laid out, where fewer do

  [[nodiscard]] static belay::schedule::compute_lists lists(const schedule_word& of, std::size_t ranks,
                                                            std::size_t micro_batches) {
    if (of.table) return belay::schedule::compute_lists(*of.table);
    return belay::schedule::named_schedule::of(of.name).lists(ranks, micro_batches, {});
  }
  // Whole groups of as many micro-batches as there are ranks, in which interleaved schedules have them.
  [[nodiscard]] static std::size_t played(const schedule_word& of, std::size_t ranks, std::size_t micro_batches) {
    const std::size_t groups = std::max<std::size_t>(most_cells / (ranks * of.chunks()) / ranks, 6);
    return of.table ? micro_batches : std::min(micro_batches, groups * ranks);
  }
  [[nodiscard]] static std::size_t fewer(const schedule_word& of, std::size_t ranks, std::size_t played) {
    return std::max(of.least_micro_batches(ranks), played - 2 * ranks);
  }

  // The counts of a rank's chunks that are not all smaller than others. What keeps every micro-batch keeps those too
  // that are not laid out.
  void find_held(std::size_t rank) {
    std::vector<std::vector<std::size_t>>& most = held_[rank];
    std::vector<std::size_t> now(chunks());
    for (std::size_t i = 0; i < lists_.size(rank); ++i) {
      const belay::schedule::planned_compute& next = lists_.of(rank)[i];
      using belay::schedule::action_kind;
      splits_ = splits_ || next.kind == action_kind::weight_gradient;
      if (next.kind == action_kind::backward || next.kind == action_kind::weight_gradient) --now[next.chunk];
      if (next.kind != action_kind::forward) continue;
      ++now[next.chunk];
      const auto within = [](const auto& less, const auto& more) {
        return std::equal(less.begin(), less.end(), more.begin(), [](auto a, auto b) { return a <= b; });
      };
      if (std::any_of(most.begin(), most.end(), [&](const auto& each) { return within(now, each); })) continue;
      std::erase_if(most, [&](const auto& each) { return within(each, now); });
      most.push_back(now);
    }
    for (std::vector<std::size_t>& counts : most)
      for (std::size_t& each : counts)
        if (each == played_) each = micro_batches_;
  }

  schedule_word word_;
  std::size_t micro_batches_, played_;
  belay::schedule::compute_lists lists_;
  std::optional<belay::schedule::compute_lists> fewer_;
  std::vector<std::vector<std::vector<std::size_t>>> held_;  // of each rank, by chunk
  bool splits_ = false;
};

}  // namespace belay_plan
