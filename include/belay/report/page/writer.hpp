// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The page as a whole: one file of HTML with its pictures inside, no script, and nothing from elsewhere.
// IWYU pragma: private, include "belay/report/page.hpp"
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "belay/core/config.hpp"
#include "belay/report/page/expert_map.hpp"
#include "belay/report/page/folder.hpp"
#include "belay/report/page/history.hpp"
#include "belay/report/page/markup.hpp"
#include "belay/report/page/memory_stack.hpp"
#include "belay/report/page/plot.hpp"
#include "belay/report/page/rank_waits.hpp"
#include "belay/report/page/sample.hpp"
#include "belay/report/page/step_picture.hpp"
#include "belay/report/page/tables.hpp"
#include "belay/report/text_buffer.hpp"

namespace belay::inline BELAY_ABI {

/// `stopped`: as it was asked to, before its last step.
enum class report_state : std::uint8_t { running, finished, stopped, failed };

/// The content from which a page is written.
struct report_content {
  const report_subject& subject;
  std::span<const report_tier_rows> tiers;
  const report_history& history;
  const expert_map& experts;
  const rank_waiting& waiting;
  const last_step& last;
  const rank_waits& waits;
  report_state state = report_state::running;
  std::string_view message;  // why it failed
  std::string_view sample;   // what the model writes
};

class page_writer {
 public:
  static constexpr std::size_t most_text = page_ending::most_reason;  // bytes of a message or a sample

  page_writer(text_buffer& to, const report_content& of) noexcept : out_(to), of_(&of) {}

  void write() {
    head();
    training();
    if (of_->history.buckets().used() > 0) page_curves(out_, of_->history).draw_marks();
    memory();
    expert_picture(out_).draw(of_->experts, of_->subject);
    pipeline();
    wait_bars(out_).draw(of_->waits);
    page_tables(out_).plan(of_->subject);
    page_tables(out_).settings(of_->subject);
    sample();
    out_ << "</main></body></html>\n";
  }

 private:
  void head() {
    const report_subject& subject = of_->subject;
    out_ << "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
         << "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">";
    if (of_->state == report_state::running) out_ << page_ending::refresh;
    (out_ << "<link rel=\"icon\" href=\"data:,\"><title>").text(subject.title, 200)
        << "</title><style>" << page_style << page_colours;
    (out_ << "</style></head>\n<body><main><h1>").text(subject.title, 200) << "</h1>\n<p class=\"soft\">";
    state();
    out_ << "; " << subject.ranks << (subject.ranks == 1 ? " rank" : " ranks") << "; as of ";
    time();
    if (of_->history.buckets().each() > 1)
      out_ << "; a point of a curve is " << of_->history.buckets().each()
           << " steps: a line at their mean in a band from least to most";
    out_ << "</p>\n";
    (out_ << page_ending::reason).text(of_->message, most_text) << page_ending::end_of_reason << "\n";
    page_tables(out_).tiles(subject, of_->history, of_->tiers);
  }

  void state() {
    switch (of_->state) {
      case report_state::running: out_ << page_ending::running; break;
      case report_state::finished: out_ << "finished"; break;
      case report_state::stopped: out_ << "stopped at step " << of_->history.trained() << " as asked"; break;
      case report_state::failed: out_ << "failed"; break;
    }
  }

  void training() {
    page_curves curves(out_, of_->history);
    if (of_->history.trained() == 0) {
      out_ << "<section><h2>Training</h2>\n<p>No step was trained.</p></section>\n";
      return;
    }
    out_ << "<section><h2>Training</h2><div class=\"two\">\n";
    const page_curve losses[] = {{report_curve::loss, "training", 0}, {report_curve::eval_loss, "evaluation", 1}};
    curves.draw("Loss", of_->subject.loss_unit, losses, page_unit::number, page_base::data);
    const page_curve speed[] = {{report_curve::tokens_per_s, "tokens/s", 2}};
    curves.draw("Speed", "tokens a second", speed, page_unit::number, page_base::zero);
    const page_curve norm[] = {{report_curve::grad_norm, "norm", 3}};
    curves.draw("Gradient norm", "before clipping", norm, page_unit::number, page_base::zero);
    const page_curve rate[] = {{report_curve::learning_rate, "rate", 5}};
    curves.draw("Learning rate", "", rate, page_unit::number, page_base::zero);
    const page_curve flops[] = {{report_curve::flops_utilization, "utilization", 4}};
    curves.draw("FLOPs utilization", "share of the peak", flops, page_unit::share, page_base::zero);
    out_ << "</div></section>\n";
  }

  void memory() {
    if (of_->tiers.empty() || of_->history.trained() == 0) return;
    out_ << "<section><h2>Memory of rank " << of_->subject.shown_rank << "</h2>";
    if (of_->subject.ranks > 1) out_ << "<p class=\"note\">The rank whose plan has most in tier device.</p>";
    out_ << "<div class=\"two\">\n";
    memory_stack stack(out_, of_->subject, of_->history);
    for (std::size_t i = 0; i < of_->tiers.size(); ++i) {
      stack.draw(i, of_->tiers[i]);
      step_picture(out_).memory(of_->last, i, of_->tiers[i], of_->subject);
    }
    step_picture(out_).open_obligations(of_->last);
    out_ << "</div></section>\n";
  }

  void pipeline() {
    const report_history& history = of_->history;
    if (!history.has(report_curve::bubble) && !of_->waiting.any()) return;
    out_ << "<section><h2>Pipeline</h2><div class=\"two\">\n";
    page_curves curves(out_, history);
    const page_curve bubble[] = {{report_curve::bubble, "executed", 0}, {report_curve::bubble_predicted, "planned", 1}};
    curves.draw("Bubble", "mean share of the pipeline phase", bubble, page_unit::share, page_base::zero);
    const page_curve waits[] = {{report_curve::waiting_most, "most", 1},
                                {report_curve::waiting_median, "median", 3},
                                {report_curve::waiting_least, "least", 2}};
    if (of_->waiting.ranks() > 1) curves.draw("Waiting", "over ranks", waits, page_unit::share, page_base::zero);
    page_tables(out_).waiting(of_->waiting);
    out_ << "</div>\n";
    step_picture(out_).schedules(of_->last);
    out_ << "</section>\n";
  }

  void sample() {
    if (of_->sample.empty()) return;
    (out_ << "<section><h2>A sample</h2><div class=\"card\"><pre>").text(of_->sample, most_text)
        << "</pre></div></section>\n";
  }

  // As in 2026-01-31 08:05:09 UTC.
  void time() {
    using namespace std::chrono;
    const auto now = floor<seconds>(system_clock::now());
    const auto day = floor<days>(now);
    const year_month_day date(day);
    const hh_mm_ss<seconds> hour(now - day);
    const auto two = [this](auto value) { out_ << (value < 10 ? "0" : "") << static_cast<int>(value); };
    out_ << static_cast<int>(date.year()) << "-";
    two(static_cast<unsigned>(date.month()));
    out_ << "-";
    two(static_cast<unsigned>(date.day()));
    out_ << " ";
    two(hour.hours().count());
    out_ << ":";
    two(hour.minutes().count());
    out_ << ":";
    two(hour.seconds().count());
    out_ << " UTC";
  }

  page_markup out_;
  const report_content* of_;
};

}  // namespace belay::inline BELAY_ABI
