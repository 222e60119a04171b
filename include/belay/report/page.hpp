// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A run as a page that people look at: index.html in a folder, one file with its pictures inside, made from a sample of
// every step, by one rank. All memory is taken before the first step, curves and pictures have limits, and a page is at
// most 2 MiB, however long the run. The samples are kept beside it, for a run that goes on.
//
//   belay::report_folder folder("reports/first", belay::report_start::afresh);  // before training: refused here
//   belay::report_page page(folder, {.title = "first", .steps = 1000, .ranks = 4});
//   page.add({.step = number, .loss = loss, .tokens_per_s = speed});             // after each step
//   page.finish();
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "belay/core/bounds.hpp"
#include "belay/core/checked_size.hpp"
#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/policies.hpp"
#include "belay/core/where.hpp"
#include "belay/report/page/expert_map.hpp"
#include "belay/report/page/folder.hpp"  // IWYU pragma: export
#include "belay/report/page/history.hpp"
#include "belay/report/page/rank_waits.hpp"
#include "belay/report/page/room.hpp"
#include "belay/report/page/sample.hpp"  // IWYU pragma: export
#include "belay/report/page/step_picture.hpp"
#include "belay/report/page/tables.hpp"
#include "belay/report/page/writer.hpp"
#include "belay/report/text_buffer.hpp"
#include "belay/train/plan.hpp"

namespace belay::inline BELAY_ABI {

/// The rank whose plan has most in tier device, and of several the first.
[[nodiscard]] inline std::size_t fullest_rank(const plan& planned) {
  std::size_t out = 0;
  for (std::size_t rank = 1; rank < planned.ranks().size(); ++rank)
    if (planned.ranks()[rank].peak_bytes(tier::device) > planned.ranks()[out].peak_bytes(tier::device)) out = rank;
  return out;
}

/// A row for each purpose of each tier that the plan has bytes in.
[[nodiscard]] inline std::vector<report_row> report_rows(const plan& planned, std::size_t shown_rank) {
  std::vector<report_row> out;
  for (std::size_t number = 0; number < tier_count; ++number) {
    const tier of = static_cast<tier>(number);
    for (const std::string& purpose : planned.purposes(of)) {
      report_row row{name(of), purpose};
      checked_size total;
      for (std::size_t rank = 0; rank < planned.ranks().size(); ++rank) {
        checked_size bytes;
        for (const plan_item& item : planned.ranks()[rank].items())
          if (item.where_it_is == of && item.purpose == purpose) bytes += item.bytes;
        const std::uint64_t here = bytes.saturated();
        total += bytes.saturated();
        row.smallest = rank == 0 ? here : lesser_of(row.smallest, here);
        row.largest = greater_of(row.largest, here);
        if (rank == shown_rank) row.planned = here;
      }
      row.total = total.saturated();
      if (row.total > 0) out.push_back(std::move(row));
    }
  }
  return out;
}

/// The report of a run, written by one thread of one rank. What goes wrong with its files after it was made never stops
/// the run: nothing more is written, and `take_problem()` has why.
class report_page {
 public:
  static constexpr std::size_t most_bytes = std::size_t{2} << 20U;  // of a page
  /// The page is written no more often.
  static constexpr std::int64_t nanoseconds_between_pages = 5'000'000'000;

  /// Memory of the page of a run of so many ranks: a lease of tier host, as `run.lease<std::byte>(tier::host,
  /// report_page::room_bytes(ranks), "report")`.
  [[nodiscard]] static constexpr std::size_t room_bytes(std::size_t ranks) noexcept {
    return report_room::bytes<char>(most_bytes) + report_history::room_bytes() + expert_map::room_bytes() +
           rank_waiting::room_bytes(ranks) + last_step::room_bytes() + rank_waits::room_bytes(ranks);
  }

  /// `folder` and `room` outlive it; without room it allocates its own.
  report_page(report_folder& folder, report_subject subject, std::span<std::byte> room = {})
      : folder_(&folder),
        subject_(std::move(subject)),
        tiers_(tiers_of(subject_.memory)),
        shape_(shape_line(subject_)),
        own_(room.empty() ? room_bytes(subject_.ranks) : 0),
        room_(room.empty() ? std::span<std::byte>(own_) : room),
        text_(room_.take<char>(most_bytes)),
        history_(room_),
        experts_(subject_.layers, subject_.experts, room_),
        waiting_(subject_.ranks, room_),
        last_(room_),
        waits_(subject_.ranks, room_) {}
  report_page(const report_page&) = delete;
  report_page& operator=(const report_page&) = delete;

  /// The run goes on after `step`: later samples of the folder are cut off, the others are read. Throws file_error for
  /// samples that cannot be read.
  void resume_after(std::uint64_t step, where at = where::current()) {
    sample_reader reader(subject_);
    const auto keep_line = [&](std::string_view line, std::uint64_t begin) {
      const report_line read = reader.read(line, folder_->samples_path(), begin, at);
      if (read.what != report_line::line_type::shape && read.sample.step > step) return false;
      keep(read);
      return true;
    };
    try {
      folder_->cut_where(keep_line, at);
    } catch (const file_error& problem) {
      throw file_error(
          problem.path(), problem.offset(),
          problem.message() + "; the report cannot go on with these samples: name another folder, or remove this file",
          at);
    }
    history_.begin_again();
    waiting_.begin_again();
    if (step > 0) mark(report_mark::resume, step);
  }

  /// A committed step. Steps rise. Allocates nothing.
  template <clock_policy Clock = monotonic_clock>
  void add(const report_sample& sample) {
    keep(sample);
    last_.keep(sample);
    waits_.keep(sample.waits_step, sample.waits);
    write_line([&] { return sample_line(text_, sample); });
    const std::int64_t now = Clock::now();
    if (written_ && now - *written_ < nanoseconds_between_pages) return;
    written_ = now;
    write(report_state::running, {});
  }
  /// The loss of an evaluation after step `step`.
  void add_eval_loss(std::uint64_t step, double loss) {
    history_.add(report_curve::eval_loss, step, loss);
    write_line([&] { return evaluation_line(text_, step, loss); });
  }
  /// Marks what happened at step `step` beside its training. Replays and plan misses of a sample are marks already.
  void mark(report_mark which, std::uint64_t step) {
    history_.add(which, step, 1);
    write_line([&] { return mark_line(text_, step, which); });
  }

  /// The last page: the run is over. `sample` is a text that the model writes.
  void finish(std::string_view sample = {}) {
    sample_ = sample;
    write(report_state::finished, {});
  }
  /// The last page of a run that ends before its last step, because it was asked to.
  void stop() { write(report_state::stopped, {}); }
  /// The last page of a run that ends by an error.
  void fail(std::string_view why) { write(report_state::failed, why); }

  /// Why nothing more is written, once.
  [[nodiscard]] std::optional<error> take_problem() { return std::exchange(problem_, std::nullopt); }

 private:
  void keep(const report_line& read) {
    const std::uint64_t step = read.sample.step;
    switch (read.what) {
      case report_line::line_type::shape: return;
      case report_line::line_type::sample: return keep(read.sample);
      case report_line::line_type::evaluation: return history_.add(report_curve::eval_loss, step, read.eval_loss);
      case report_line::line_type::mark: return history_.add(read.mark, step, 1);
    }
  }
  void keep(const report_sample& sample) {
    for (const sampled_curve& each : sampled_curves) history_.add(each.curve, sample.step, sample.*each.value);
    history_.add(report_mark::replay, sample.step, sample.replays);
    history_.add(report_mark::plan_miss, sample.step, sample.plan_misses);
    for (std::size_t i = 0; i < sample.tiers.size() && i < tiers_.size(); ++i) {
      const report_tier_rows& tier = tiers_[i];
      const bool itemised = sample.live.size() >= tier.first + tier.count;
      history_.add_bytes(sample.step, i, sample.tiers[i], tier.first,
                         itemised ? sample.live.subspan(tier.first, tier.count) : std::span<const std::uint64_t>());
    }
    experts_.add(sample.step, sample.expert_tokens);
    waiting_.add(sample.step, sample.waiting, history_);
  }

  template <class Line>
  void write_line(Line&& line) {
    attempt([&] {
      if (!std::exchange(shape_written_, true)) folder_->append(shape_);
      folder_->append(line());
    });
  }
  void write(report_state state, std::string_view message) {
    attempt([&] {
      text_buffer text(text_);
      const report_content content{subject_, tiers_, history_, experts_, waiting_,
                                   last_,    waits_, state,    message,  sample_};
      page_writer(text, content).write();
      folder_->replace_page(text.text());
    });
  }
  template <class Action>
  void attempt(Action&& action) {
    if (failed_) return;
    try {
      action();
    } catch (const error& problem) {
      failed_ = true;
      problem_ = problem;
    }
  }

  report_folder* folder_;
  report_subject subject_;
  std::vector<report_tier_rows> tiers_;
  std::string shape_;
  std::vector<std::byte> own_;
  report_room room_;
  std::span<char> text_;  // of a line, or of a page
  report_history history_;
  expert_map experts_;
  rank_waiting waiting_;
  last_step last_;
  rank_waits waits_;
  std::string sample_;
  std::optional<std::int64_t> written_;  // the last page, by the clock
  bool shape_written_ = false;
  bool failed_ = false;
  std::optional<error> problem_;
};

}  // namespace belay::inline BELAY_ABI
