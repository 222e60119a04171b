// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The ledger is the list of a step's open obligations. It has a fixed number of entries and allocates nothing after it
// is made. An `obligation_id` names an entry and its generation, so that a handle which is used twice, or after its
// step, is recognised and does not discharge another handle's obligation.
//
//   belay::ledger obligations(64);
//   const belay::obligation_id id = obligations.open({.layer = "head", .opened_at = belay::where::current()});
//   obligations.close(id);
//   if (obligations.open_count() > 0) std::puts(obligations.text().c_str());
#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/function_ref.hpp"
#include "belay/core/printable.hpp"
#include "belay/core/where.hpp"

namespace belay::inline BELAY_ABI {

/// The kind of an obligation: what a handle owes.
enum class obligation_kind : std::uint8_t {
  saved_activation,
  recompute_frame,
  gathered_parameter,
  weight_gradient,
  dispatched_tokens,
  combined_tokens,
  returning_gradients,
  pending_collective,
  transfer,
  offload_copy,
  owed_backward,
};

/// The name as lists of open obligations have it: "saved activation", ...
[[nodiscard]] constexpr const char* name(obligation_kind kind) noexcept {
  switch (kind) {
    case obligation_kind::saved_activation: return "saved activation";
    case obligation_kind::recompute_frame: return "recompute frame";
    case obligation_kind::gathered_parameter: return "gathered parameter";
    case obligation_kind::weight_gradient: return "weight-gradient job";
    case obligation_kind::dispatched_tokens: return "dispatched tokens";
    case obligation_kind::combined_tokens: return "combined tokens";
    case obligation_kind::returning_gradients: return "returning expert gradients";
    case obligation_kind::pending_collective: return "pending collective";
    case obligation_kind::transfer: return "send or receive";
    case obligation_kind::offload_copy: return "offload copy";
    case obligation_kind::owed_backward: return "owed backward";
  }
  return "obligation";
}

/// The action that is missing, in words, for messages about an open obligation of this kind.
[[nodiscard]] constexpr const char* remedy(obligation_kind kind) noexcept {
  switch (kind) {
    case obligation_kind::saved_activation: return "its backward was never called";
    case obligation_kind::recompute_frame: return "its recompute was not followed by a backward";
    case obligation_kind::gathered_parameter: return "it was never resharded";
    case obligation_kind::weight_gradient: return "its weight gradient was never computed";
    case obligation_kind::dispatched_tokens: return "they were never combined";
    case obligation_kind::combined_tokens: return "their backward was never called";
    case obligation_kind::returning_gradients: return "they were never finished";
    case obligation_kind::pending_collective: return "it was never waited for";
    case obligation_kind::transfer: return "it was never completed";
    case obligation_kind::offload_copy: return "its copy was never awaited";
    case obligation_kind::owed_backward: return "it was never discharged";
  }
  return "it was never discharged";
}

/// One obligation. `layer` points to a name that outlives the step. `shape` is that of the output, or of what was sent,
/// in elements; its first `rank` entries are meaningful. `bytes` are all that the handle holds.
/// An obligation is something that a step has opened and that must be discharged exactly once before the step can
/// commit: an activation that owes a backward, tokens that owe a combine. The handle that the user holds is the only
/// way to discharge it. This record remains when the handle is lost, and says what was opened and where.
struct obligation {
  /// The kind of what is owed; the members after it say by whom and from where: layer with index and name, micro-batch,
  /// bytes, shape of the output, site.
  obligation_kind kind = obligation_kind::saved_activation;
  std::uint8_t rank = 0;
  std::uint32_t parent = 0;  // ledger index of the invocation that a recompute repeats; 0: none
  std::size_t layer_index = 0;
  std::size_t micro_batch = 0;
  std::size_t bytes = 0;
  std::array<std::size_t, 4> shape{};
  const char* layer = "";
  where opened_at;

  /// "saved activation of layer 5 'head' (micro-batch 3, 4x128x256, holds 1048576 bytes) opened at train.cpp:88: its
  /// backward was never called"
  [[nodiscard]] std::string text() const;
};

/// Names one entry of a ledger; a default one names none. Plain data: the handle that holds it is what cannot be
/// copied.
struct obligation_id {
  /// The place in the ledger, and the use of that place.
  std::uint32_t index = 0;
  std::uint32_t generation = 0;
};

/// Obligations are open where none may be. `what()` lists the first of them with layer, micro-batch, bytes, shape, file
/// and line.
class open_obligations : public usage_error {
 public:
  /// `list` is one line an obligation.
  open_obligations(const std::string& list, std::size_t count, where at);

  /// How many were open.
  [[nodiscard]] std::size_t count() const noexcept { return count_; }

 private:
  std::size_t count_;
};

class ledger {
 public:
  /// Room for `capacity` obligations at a time. Entry 0 is never used: a default `obligation_id` names it, so that
  /// every id can be looked up.
  explicit ledger(std::size_t capacity = 4096, where at = where::current()) : entries_(entries_for(capacity, at)) {
    clear();
  }

  /// Records an obligation. Throws usage_error when more obligations are open than the ledger was made for.
  [[nodiscard]] obligation_id open(const obligation& what) {
    return open_in_place(what.opened_at, [&](obligation& record) { record = what; });
  }

  /// Records an obligation that `write(obligation&)` writes in place; before, the record holds the values of an earlier
  /// one. `write` must not open or close obligations. Throws usage_error when more obligations are open than the ledger
  /// was made for.
  template <std::invocable<obligation&> Write>
  [[nodiscard]] obligation_id open_in_place(where opened_at, Write&& write) {
    if (free_ == none) [[unlikely]]
      refuse(opened_at);
    const std::uint32_t index = free_;
    obligation_slot& slot = entries_[index];
    free_ = slot.next_free;
    std::forward<Write>(write)(slot.what);
    ++slot.generation;
    slot.lost = false;
    ++open_;
    return {index, slot.generation};
  }

  /// Whether it was opened and not yet discharged.
  [[nodiscard]] bool is_open(obligation_id id) const noexcept { return entries_[id.index].generation == id.generation; }

  /// Removes an obligation. An id that is not open is an error in checked builds; in release builds it is counted, and
  /// the step refuses to commit.
  void close(obligation_id id, where at = where::current()) {
    if (!is_open(id)) [[unlikely]] {
      ++misused_;
      if constexpr (checked(check_level::local)) {
        throw usage_error("a handle was discharged twice, or after its step had ended", at);
      }
      return;
    }
    obligation_slot& slot = entries_[id.index];
    ++slot.generation;
    slot.next_free = free_;
    free_ = id.index;
    --open_;
  }

  /// Of an open obligation `kind` is left, whose handle holds `bytes`.
  void discharge_in_part(obligation_id id, obligation_kind kind, std::size_t bytes) noexcept {
    entries_[id.index].what.kind = kind;
    entries_[id.index].what.bytes = bytes;
  }

  /// The handle of an obligation is destroyed. Where it is open still, nobody can discharge it any more.
  void note_lost(obligation_id id) noexcept {
    if (is_open(id)) entries_[id.index].lost = true;
  }
  /// The obligations that are open and can be discharged by nobody, for an error of memory that they hold: empty where
  /// there are none.
  [[nodiscard]] std::string lost_text() const;

  /// Forgets every obligation; ids that are still held are no longer open.
  void clear() noexcept;

  /// The obligation that was opened as `id`; how many are open; how many were discharged twice or after their step.
  [[nodiscard]] const obligation& at(obligation_id id) const noexcept { return entries_[id.index].what; }
  [[nodiscard]] std::size_t open_count() const noexcept { return open_; }
  [[nodiscard]] std::size_t misuse_count() const noexcept { return misused_; }

  /// The open obligations, one per line, at most `lines` of them.
  [[nodiscard]] std::string text(std::size_t lines = 16) const;

  /// Calls `visit(const obligation&)` for each open entry.
  template <class Visitor>
  void for_each_open(Visitor&& visit) const {
    for (const obligation_slot& slot : entries_) {
      if (slot.is_open()) visit(slot.what);
    }
  }

 private:
  static constexpr std::uint32_t none = 0;

  [[nodiscard]] static std::size_t entries_for(std::size_t capacity, where at);

  // A function of its own, so that `open` is short enough to be inlined.
  [[noreturn, gnu::cold, gnu::noinline]] void refuse(where at) const {
    throw usage_error("more than " + std::to_string(entries_.size() - 1) + " obligations are open in one step", at);
  }

  struct obligation_slot {
    obligation what;
    std::uint32_t generation = 2;  // odd while it is open, and never that of a default obligation_id
    std::uint32_t next_free = none;
    bool lost = false;  // while it is open
    [[nodiscard]] bool is_open() const noexcept { return generation % 2 == 1; }
  };

  // Of `count` open ones that are wanted.
  [[nodiscard]] std::string list(std::size_t lines, std::size_t count,
                                 function_ref<bool(const obligation_slot&)> wanted) const;

  std::vector<obligation_slot> entries_;
  std::uint32_t free_ = none;
  std::size_t open_ = 0;
  std::size_t misused_ = 0;
};

}  // namespace belay::inline BELAY_ABI

#if !defined(BELAY_SEPARATE_COMPILATION)
#include "belay/core/ledger.ipp"  // IWYU pragma: export
#endif
