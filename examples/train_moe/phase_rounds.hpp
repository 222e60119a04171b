// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A run between its training steps: the other phases of its cycle, each entered and left by a transition. On
// all ranks, and in the rehearsal. `phase_session.hpp` has what depends on the types of a trainer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "belay/comm/mesh.hpp"
#include "belay/core/function_ref.hpp"
#include "belay/parallel/gathers.hpp"
#include "belay/step/phase.hpp"
#include "belay/train/phase_switch.hpp"
#include "train_moe/options.hpp"
#include "train_moe/phase_cycle.hpp"
#include "train_moe/phase_lines.hpp"

namespace train_moe {

class phase_rounds {
 public:
  using line_writer = belay::function_ref<void(std::string_view)>;

  /// All outlive it. Lines have room for the text of a rollout of `most_text` bytes.
  phase_rounds(const options& settings, const belay::mesh& mesh, const phase_cycle& cycle, std::size_t most_text);
  phase_rounds(const phase_rounds&) = delete;
  phase_rounds& operator=(const phase_rounds&) = delete;

  /// After step `number`: the phases that follow it, if it ends a cycle's training. `write(line)` gets the JSON line of
  /// each pass, rollout and transition, `say(line)` a line for people of each pass and rollout. Returns the loss of the
  /// last evaluation among them. Collective over the world.
  std::optional<double> after(std::size_t number, line_writer write, line_writer say);

  /// The run goes on after step `number`: its passes are counted as if it had not ended.
  void continue_after(std::size_t number) noexcept;

  /// Leases what the largest pass of each phase does.
  void rehearse();

  /// The mean loss of the text of evaluations, in whatever phase.
  [[nodiscard]] virtual double evaluate() = 0;
  /// A text of `length` bytes, by one pipeline; the others take part. As of `rollout::run`.
  [[nodiscard]] std::span<const char> sample(std::size_t length, std::uint64_t seed);

 protected:
  ~phase_rounds() = default;

 private:
  // Of the trainer and of its run; see `phase_session`.
  [[nodiscard]] virtual bool rehearsing() const = 0;
  virtual const belay::transition& enter_phase(belay::phase next) = 0;
  [[nodiscard]] virtual belay::gather_counts take_gathered(belay::phase of) = 0;
  virtual void rehearse_evaluation() = 0;
  virtual void rehearse_rollout() = 0;
  virtual void make_room(std::size_t text) = 0;
  [[nodiscard]] virtual std::span<const char> draw(std::span<const std::size_t> lengths, std::uint64_t seed) = 0;

  void enter(belay::phase next, line_writer write);
  double evaluate(std::size_t after_step, line_writer write, line_writer say);
  void roll_out(std::size_t after_step, line_writer write, line_writer say);
  [[nodiscard]] const belay::group& world() const { return mesh_->control(); }

  const options* settings_;
  const belay::mesh* mesh_;
  const phase_cycle* cycle_;
  std::vector<std::size_t> lengths_;  // of the rollout, by coordinate of data
  phase_lines lines_;
  std::size_t evaluations_ = 0, rollouts_ = 0;
};

}  // namespace train_moe
