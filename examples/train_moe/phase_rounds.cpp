// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "train_moe/phase_rounds.hpp"

#include <algorithm>
#include <cstdio>

#include "train_moe/corpus.hpp"

namespace train_moe {

phase_rounds::phase_rounds(const options& settings, const belay::mesh& mesh, const phase_cycle& cycle,
                           std::size_t most_text)
    : settings_(&settings),
      mesh_(&mesh),
      cycle_(&cycle),
      lengths_(static_cast<std::size_t>(mesh.shape().data)),
      lines_(most_text, lengths_.size()) {}

std::optional<double> phase_rounds::after(std::size_t number, line_writer write, line_writer say) {
  std::optional<double> loss;
  if (!cycle_->ends_with(number)) return loss;
  for (const phase_cycle::cycle_entry& each : cycle_->entries()) {
    if (each.which == belay::phase::train) continue;
    enter(each.which, write);
    for (std::size_t i = 0; i < each.count; ++i)
      if (each.which == belay::phase::eval)
        loss = evaluate(number, write, say);
      else
        roll_out(number, write, say);
  }
  enter(belay::phase::train, write);
  return loss;
}

void phase_rounds::continue_after(std::size_t number) noexcept {
  evaluations_ = cycle_->passes_until(number, belay::phase::eval);
  rollouts_ = cycle_->passes_until(number, belay::phase::rollout);
}

void phase_rounds::rehearse() {
  const auto silent = [](std::string_view) {};
  enter(belay::phase::eval, silent);
  rehearse_evaluation();
  enter(belay::phase::rollout, silent);
  rehearse_rollout();
  enter(belay::phase::train, silent);
}

std::span<const char> phase_rounds::sample(std::size_t length, std::uint64_t seed) {
  std::fill(lengths_.begin(), lengths_.end(), std::size_t{0});
  lengths_[0] = length;
  make_room(length);
  return draw(lengths_, seed);
}

void phase_rounds::enter(belay::phase next, line_writer write) {
  const belay::transition& found = enter_phase(next);
  if (!rehearsing()) write(lines_.transition(world(), found));
}

double phase_rounds::evaluate(std::size_t after_step, line_writer write, line_writer say) {
  const double loss = evaluate();
  const belay::gather_counts counts = take_gathered(belay::phase::eval);
  write(lines_.evaluation(world(), ++evaluations_, after_step, loss, counts));
  char words[64];
  std::snprintf(words, sizeof words, "eval %zu  loss %.4f\n", evaluations_, loss);
  say(std::string_view(words));
  return loss;
}

void phase_rounds::roll_out(std::size_t after_step, line_writer write, line_writer say) {
  const std::uint64_t seed = corpus::mix(settings_->seed + ++rollouts_);
  for (std::size_t d = 0; d < lengths_.size(); ++d)
    lengths_[d] = 1 + static_cast<std::size_t>(corpus::mix(seed + d) % settings_->sequence);
  const std::span<const char> text = draw(lengths_, seed);
  const belay::gather_counts counts = take_gathered(belay::phase::rollout);
  write(lines_.rollout(world(), rollouts_, after_step, lengths_, text, counts));
  char words[64];
  std::snprintf(words, sizeof words, "rollout %zu  %zu bytes\n", rollouts_, text.size());
  say(std::string_view(words));
}

}  // namespace train_moe
