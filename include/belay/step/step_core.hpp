// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The course of a step over its participants, whatever their types: it begins them, finishes or abandons them in the
// commit, votes, and ends in exactly one way. `step` adds the types: which participants, and the token that their
// parts make.
// IWYU pragma: private, include "belay/step.hpp"
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "belay/core/config.hpp"
#include "belay/core/function_ref.hpp"
#include "belay/core/where.hpp"
#include "belay/device/findings.hpp"
#include "belay/device/kit.hpp"
#include "belay/step/commit.hpp"
#include "belay/step/engine.hpp"
#include "belay/step/participant.hpp"

namespace belay::inline BELAY_ABI {

/// How a step ended. Of a refused one `unread` is of the engine, and true until somebody reads why.
struct ended_step {
  end_of_step how = end_of_step::cut_off;
  step_summary summary = {};
  std::uint64_t needed_rows = 0;  // of a replay
  refused_step why = {};
  bool* unread = nullptr;
};

template <class Engine>
class step_core {
 public:
  /// Begins a step of one micro-batch, and all `participants`; they, the array and the engine outlive it. Throws
  /// usage_error while another step of the engine is open.
  step_core(Engine& of, where at, std::span<participant* const> participants);
  step_core(const step_core&) = delete;
  step_core& operator=(const step_core&) = delete;

  [[nodiscard]] bool ended() const noexcept { return ended_; }
  /// Of a step that nobody has ended: says so, with the handles that were lost in it, unless an exception is on its
  /// way; and cuts it off.
  void abandon() noexcept;
  void cut_off() noexcept;
  void micro_batches(std::size_t count, where at) const;
  void add(const ballot& findings) noexcept;

  /// Ends a step without participants. Throws open_obligations, in a checked build.
  [[nodiscard]] ended_step commit(function_ref<ballot(const ballot&)> vote, where at);
  /// Ends the step over its ranks. Collective. What participants have finished is kept by them where it is committed.
  /// Throws open_obligations, in a checked build, and what participants and ranks throw.
  [[nodiscard]] ended_step commit(const step_ranks& ranks, const divisor_value& divisor, where at);

 private:
  void compare(where at) const;
  // Abandoned, where a handle was lost.
  [[nodiscard]] order_of_step own_order() const noexcept;
  [[nodiscard]] ballot vote(const step_ranks& ranks, std::uint64_t divisor, where at) const;
  // The one place where the host waits for what the step has queued, and reads it.
  void read_findings(where at);
  [[nodiscard]] std::string close_obligations();
  void expect_no_obligations(const std::string& list, where at);
  [[nodiscard]] std::uint64_t order() const;
  [[nodiscard]] kit_choices* choices() const noexcept;
  // Where gradients are not finite, of the participants that can tell.
  [[nodiscard]] std::string not_finite(std::uint64_t number) const;
  void end(end_of_step how, where at);
  [[nodiscard]] ended_step refused(const ballot& all, std::string list) const;
  void report_abandoned() const noexcept;

  Engine* engine_;
  where at_;
  std::span<participant* const> participants_;
  ballot findings_;
  kernel::finding first_not_finite_;
  bool ended_ = false;
};

}  // namespace belay::inline BELAY_ABI

#include "belay/step/step_core.ipp"  // IWYU pragma: export

#if defined(BELAY_SEPARATE_COMPILATION)
extern template class belay::step_core<belay::host_engine>;
#endif
