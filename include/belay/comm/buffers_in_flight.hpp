// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The buffers that started operations hold until they are waited for. In checked builds a call that touches one is told
// so by the line that lent it, instead of racing with the communication thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "belay/comm/fingerprint.hpp"
#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/where.hpp"

namespace belay::inline BELAY_ABI {

/// What one operation reads and writes.
struct buffer_use {
  std::span<const std::byte> reads;
  std::span<const std::byte> writes;
};

/// Used by the rank's own thread.
template <std::size_t Capacity>
class buffers_in_flight {
 public:
  /// `operation` was started as `ticket`, which the table holds room for.
  void add(std::uint64_t ticket, const buffer_use& what, operation by, where at) noexcept {
    entry& slot = table_[ticket % Capacity];
    if (slot.ticket == 0) ++live_;
    slot = {ticket, what, by, at};
  }
  /// It was waited for, or its handle was lost.
  void remove(std::uint64_t ticket) noexcept {
    entry& slot = table_[ticket % Capacity];
    if (slot.ticket != ticket) return;
    slot.ticket = 0;
    --live_;
  }

  /// Throws usage_error when a call would touch what is lent: write what is read or written, or read what is written.
  void expect_free(const buffer_use& what, operation by, const where& at) const {
    if (live_ == 0) return;
    for (const entry& each : table_) {
      if (each.ticket == 0) continue;
      if (!overlap(what.writes, each.what.writes) && !overlap(what.writes, each.what.reads) &&
          !overlap(what.reads, each.what.writes)) {
        continue;
      }
      throw usage_error(std::string(name(by)) + ": its buffer is lent to the " + name(each.by) + " started at " +
                            each.at.text() + " until that is waited for",
                        at);
    }
  }

 private:
  struct entry {
    std::uint64_t ticket = 0;  // 0: free
    buffer_use what;
    operation by = operation::none;
    where at;
  };

  [[nodiscard]] static bool overlap(std::span<const std::byte> a, std::span<const std::byte> b) noexcept {
    const std::less<const std::byte*> before;
    return !a.empty() && !b.empty() && before(a.data(), b.data() + b.size()) && before(b.data(), a.data() + a.size());
  }

  std::array<entry, Capacity> table_{};
  std::size_t live_ = 0;
};

}  // namespace belay::inline BELAY_ABI
