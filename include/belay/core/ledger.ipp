// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Obligations in words, and the end of a step.
#pragma once

#include "belay/core/ledger.hpp"

namespace belay::inline BELAY_ABI {

BELAY_DECL open_obligations::open_obligations(const std::string& list, std::size_t count, where at)
    : usage_error(std::to_string(count) + (count == 1 ? " obligation is" : " obligations are") + " still open\n" + list,
                  at),
      count_(count) {}

BELAY_DECL std::string obligation::text() const {
  std::string out = std::string(name(kind)) + " of layer " + std::to_string(layer_index) + " '" + printable(layer) +
                    "' (micro-batch " + std::to_string(micro_batch) + ", ";
  for (std::uint8_t axis = 0; axis < rank; ++axis) {
    if (axis > 0) out += 'x';
    out += std::to_string(shape[axis]);
  }
  if (rank > 0) out += ", ";
  return out + "holds " + std::to_string(bytes) + " bytes) opened at " + opened_at.text() + ": " + remedy(kind);
}

BELAY_DECL std::string ledger::text(std::size_t lines) const {
  return list(lines, open_, [](const obligation_slot&) { return true; });
}

BELAY_DECL std::string ledger::list(std::size_t lines, std::size_t count,
                                    function_ref<bool(const obligation_slot&)> wanted) const {
  std::string out;
  std::size_t printed = 0;
  for (const obligation_slot& slot : entries_) {
    if (!slot.is_open() || !wanted(slot)) continue;
    if (printed == lines) return out + "  and " + std::to_string(count - printed) + " more\n";
    out += "  " + slot.what.text() + "\n";
    ++printed;
  }
  return out;
}

BELAY_DECL std::string ledger::lost_text() const {
  std::size_t count = 0;
  for (const obligation_slot& slot : entries_) count += slot.is_open() && slot.lost ? 1 : 0;
  if (count == 0) return {};
  return "; " + std::to_string(count) +
         (count == 1 ? " obligation is open whose handle is gone, and holds"
                     : " obligations are open whose handles are gone, and hold") +
         " memory until the step ends:\n" + list(16, count, [](const obligation_slot& slot) { return slot.lost; });
}

BELAY_DECL void ledger::clear() noexcept {
  free_ = none;
  for (std::uint32_t i = static_cast<std::uint32_t>(entries_.size()); i-- > 1;) {
    obligation_slot& slot = entries_[i];
    if (slot.is_open()) ++slot.generation;
    slot.next_free = free_;
    free_ = i;
  }
  open_ = 0;
  misused_ = 0;
}

BELAY_DECL std::size_t ledger::entries_for(std::size_t capacity, where at) {
  if (capacity < 0xffffffffU) return capacity + 1;
  throw usage_error(
      "a ledger for " + std::to_string(capacity) + " obligations at a time: it has room for less than 2^32", at);
}

}  // namespace belay::inline BELAY_ABI
