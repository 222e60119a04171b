// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "train_moe/schedule_costs.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <system_error>

#include "belay/core/error.hpp"
#include "belay/core/finite.hpp"
#include "belay/core/printable.hpp"
#include "input/problem_text.hpp"
#include "input/regular_file.hpp"

namespace train_moe {

namespace {

using belay::input_error;
using belay::schedule::stage_costs;
using belay::schedule::ticks;

constexpr ticks most_ticks = 1'000'000'000;  // a run of 65536 micro-batches and 1000 layers is a number, too

[[noreturn]] void refuse(std::size_t row, const std::string& why) {
  throw input_error("row " + std::to_string(row) + ": " + why);
}

std::vector<ticks> numbers_of(std::string_view line, std::size_t row) {
  std::vector<ticks> out;
  for (std::size_t begin = 0, end = 0; end != std::string_view::npos; begin = end + 1) {
    end = line.find(',', begin);
    const std::string_view cell = line.substr(begin, end - begin);
    ticks value = 0;
    const auto [rest, error] = std::from_chars(cell.data(), cell.data() + cell.size(), value);
    if (error != std::errc{} || rest != cell.data() + cell.size() || value < 0 || value > most_ticks)
      refuse(row, "'" + belay::printable(std::string(cell)) + "' is no whole number from 0 to 1000000000");
    out.push_back(value);
  }
  return out;
}

// The part of `whole` that the layer `index` of `count` has; together they are all of it.
ticks share(ticks whole, std::size_t index, std::size_t count) {
  const auto up_to = [&](std::size_t layers) { return whole * static_cast<ticks>(layers) / static_cast<ticks>(count); };
  return up_to(index + 1) - up_to(index);
}

}  // namespace

belay::schedule::table_costs layer_costs::of_stages(const std::vector<std::size_t>& layers_of_stages) const {
  belay::schedule::table_costs out{{}, message};
  std::size_t next = 0;
  for (const std::size_t count : layers_of_stages) {
    stage_costs all{0, 0, 0};
    for (const std::size_t end = next + count; next < end; ++next) {
      all.forward += layers[next].forward;
      all.input_gradient += layers[next].input_gradient;
      all.weight_gradient += layers[next].weight_gradient;
    }
    out.stages.push_back(all);
  }
  return out;
}

layer_costs counted_costs(const options& run) {
  const model::mixtral_config& of = run.model;
  const auto whole = [](std::size_t value) { return static_cast<ticks>(value); };
  const ticks products =
      whole(2 * (of.heads + of.kv_heads) * of.head_dim + of.experts + 3 * of.experts_per_token * of.expert_width);
  const ticks scores = whole(run.sequence * of.heads * of.head_dim / of.hidden);  // two products, half is masked
  layer_costs out;
  out.layers.assign(of.layers, {products + scores, products + 2 * scores, products});
  stage_costs& last = out.layers.back();
  for (ticks stage_costs::*const each :
       {&stage_costs::forward, &stage_costs::input_gradient, &stage_costs::weight_gradient})
    last.*each += whole(of.vocab);
  return out;
}

layer_costs costs_of_text(std::string_view text, std::size_t layers) {
  constexpr std::string_view head = "belay-costs 1,";
  layer_costs out;
  std::vector<stage_costs> stages;
  text = text.substr(0, text.find_last_not_of("\r\n") + 1);  // other programs end a text with a line of their own
  for (std::size_t row = 1; !text.empty() || row == 1; ++row) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (row == 1) {
      if (!line.starts_with(head)) refuse(row, "expected 'belay-costs 1,MESSAGE', as in belay-costs 1,20");
      const std::vector<ticks> message = numbers_of(line.substr(head.size()), row);
      if (message.size() != 1) refuse(row, "expected one number, of a message");
      out.message = message.front();
      continue;
    }
    const std::vector<ticks> costs = numbers_of(line, row);
    if (costs.size() != 3) refuse(row, "expected F,I,W of a stage, as in 100,110,90");
    stages.push_back({costs[0], costs[1], costs[2]});
    if (stages.size() > layers) refuse(row, "more stages than the model has layers (" + std::to_string(layers) + ")");
  }
  if (stages.empty()) throw input_error("no stage has costs: after the first row each has one, F,I,W");
  const auto takes_nothing = [](const stage_costs& of) {
    return of.forward + of.input_gradient + of.weight_gradient == 0;
  };
  if (std::all_of(stages.begin(), stages.end(), takes_nothing)) throw input_error("no stage takes any time");
  const std::vector<std::size_t> of_stages = model::model_part::even_layers(layers, stages.size());
  for (std::size_t stage = 0; stage < stages.size(); ++stage)
    for (std::size_t layer = 0; layer < of_stages[stage]; ++layer)
      out.layers.push_back({share(stages[stage].forward, layer, of_stages[stage]),
                            share(stages[stage].input_gradient, layer, of_stages[stage]),
                            share(stages[stage].weight_gradient, layer, of_stages[stage])});
  return out;
}

layer_costs read_costs(const std::string& path, std::size_t layers) {
  const std::string text = input::content_of(path, std::uint64_t{1} << 20U);
  try {
    return costs_of_text(text, layers);
  } catch (const input_error& problem) {
    throw input_error("--schedule-costs " + belay::printable(path) + ": " + input::problem_words(problem));
  }
}

void measured_costs::add(const stage_seconds& of_step) noexcept {
  for (std::size_t stage = 0; stage < least_.size(); ++stage)
    for (std::size_t kind = 0; kind < report_table::kinds; ++kind)
      add(stage, static_cast<belay::schedule::action_kind>(kind),
          of_step(stage, static_cast<belay::schedule::action_kind>(kind)));
}

void measured_costs::add(std::size_t stage, belay::schedule::action_kind kind, double seconds) noexcept {
  using belay::schedule::action_kind;
  if (belay::is_nan(seconds) || !(seconds > 0)) return;
  stage_seconds_of& of = least_[stage];
  double& least = kind == action_kind::forward          ? of.forward
                  : kind == action_kind::backward       ? of.backward
                  : kind == action_kind::input_gradient ? of.input_gradient
                                                        : of.weight_gradient;
  if (least == 0 || seconds < least) least = seconds;
}

std::optional<std::string> measured_costs::text() const {
  const auto microseconds = [](double seconds) {
    return std::to_string(std::clamp<ticks>(std::llround(seconds * 1e6), 1, most_ticks));
  };
  std::string out = "belay-costs 1," + (message_ > 0 ? microseconds(message_) : "0") + "\n";
  for (const stage_seconds_of& each : least_) {
    const double half = each.backward / 2;
    if (each.forward == 0) return std::nullopt;
    out += microseconds(each.forward) + "," + microseconds(half + each.input_gradient) + "," +
           microseconds(half + each.weight_gradient) + "\n";
  }
  return out;
}

}  // namespace train_moe
