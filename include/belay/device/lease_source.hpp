// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// An arena for those who must not know its kind of memory: leases that begin and end within a step.
//
//   belay::lease_source_of source(arena);
//   belay::lease_chain chain;
//   std::byte* first = source.lease_bytes(1 << 20, chain, belay::where::current(), {});
//   source.release(chain);
#pragma once

#include <cstddef>

#include "belay/core/config.hpp"
#include "belay/core/where.hpp"
#include "belay/device/arena.hpp"
#include "belay/device/lease_owners.hpp"
#include "belay/device/offset_allocator.hpp"
#include "belay/device/poison.hpp"
#include "belay/device/stream_clock.hpp"
#include "belay/device/stream_event.hpp"

namespace belay::inline BELAY_ABI {

class lease_source {
 public:
  /// `bytes` until `chain` is released; not zeroed. `marked` is what `mark` gave, or nothing. Throws budget_error where
  /// the arena has no room.
  [[nodiscard]] virtual std::byte* lease_bytes(std::size_t bytes, lease_chain& chain, where at, lease_mark marked) = 0;
  /// The mark of a lease of elements of that kind: its owner is named where it is read after its release.
  [[nodiscard]] virtual lease_mark mark(element_kind kind, const lease_owner& owner) const noexcept = 0;
  // As those of `arena`.
  [[nodiscard]] virtual std::byte* lease_bytes_for(stream_kind user, const stream_event& ready, std::size_t bytes,
                                                   lease_chain& chain, where at, lease_mark marked) = 0;
  virtual void used_until(const stream_event& over, const void* first, std::size_t bytes) = 0;
  virtual void host_waited(const stream_event& over) noexcept = 0;
  virtual void release(lease_chain& chain) noexcept = 0;

 protected:
  ~lease_source() = default;
};

/// `Arena` outlives it.
template <class Arena>
class lease_source_of final : public lease_source {
 public:
  /// The arena outlives it.
  explicit lease_source_of(Arena& from) noexcept : arena_(&from) {}

  [[nodiscard]] std::byte* lease_bytes(std::size_t bytes, lease_chain& chain, where at, lease_mark marked) override {
    return arena_->lease_bytes(bytes, chain, at, marked);
  }
  [[nodiscard]] lease_mark mark(element_kind kind, const lease_owner& owner) const noexcept override {
    return arena_->mark_of(kind, owner);
  }
  [[nodiscard]] std::byte* lease_bytes_for(stream_kind user, const stream_event& ready, std::size_t bytes,
                                           lease_chain& chain, where at, lease_mark marked) override {
    return arena_->lease_bytes_for(user, ready, bytes, chain, at, marked);
  }
  void used_until(const stream_event& over, const void* first, std::size_t bytes) override {
    arena_->used_until(over, first, bytes);
  }
  void host_waited(const stream_event& over) noexcept override { arena_->host_waited(over); }
  void release(lease_chain& chain) noexcept override { arena_->release(chain); }

 private:
  Arena* arena_;
};

}  // namespace belay::inline BELAY_ABI
