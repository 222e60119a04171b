// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The memory of peers, as a rank reaches it, and the ranks that have mapped a region. Threads see each other's memory
// as it is. Processes name a buffer by the region of symmetric memory that it lies in and the offset there, because
// each maps the region elsewhere. Memory outside of any region is ordinary: no peer maps it, and the kernel has to copy
// it (cross-memory attach).
// IWYU pragma: private, include "belay/backend/host.hpp"
#pragma once

#include <sys/types.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "belay/core/config.hpp"
#include "belay/core/where.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

/// Whether the ranks of a world see each other's memory as their own: threads do, processes do not. Every protocol of
/// this backend asks before it uses an address of a peer, or waits for a peer that may have died.
enum class address_space : std::uint32_t { one, several };

/// The ranks that have mapped a region of symmetric memory: those of the group that made it. To all others it is
/// ordinary memory. Group 0 is the world.
struct rank_set {
  static constexpr std::uint32_t nobody = 0xffffffff;

  std::uint32_t group = nobody;
  std::uint64_t ranks = 0;  // a bit for each of the world's first 64
  bool beyond = false;      // there are others

  [[nodiscard]] static rank_set of(std::span<const int> members, std::uint32_t group) noexcept {
    rank_set out{group};
    for (const int rank : members) {
      if (rank < 64)
        out.ranks |= std::uint64_t{1} << rank;
      else
        out.beyond = true;
    }
    return out;
  }
  /// All of `others` are among these, as far as that is known: of ranks beyond the first 64 where the group is the
  /// same, or these are the world.
  [[nodiscard]] bool includes(const rank_set& others) const noexcept {
    return group == 0 || group == others.group || (!others.beyond && (others.ranks & ~ranks) == 0);
  }
};

/// A place in some rank's memory, as all ranks name it: 16 bits of region (0: ordinary memory, or anything among
/// threads) and 48 of offset or address.
class memory_reference {
 public:
  constexpr memory_reference() noexcept = default;
  constexpr memory_reference(std::uint16_t region, std::uint64_t offset) noexcept
      : bits_(std::uint64_t{region} << 48 | (offset & low)) {}

  [[nodiscard]] static constexpr memory_reference of(std::uint64_t bits) noexcept {
    memory_reference out;
    out.bits_ = bits;
    return out;
  }
  [[nodiscard]] constexpr std::uint64_t bits() const noexcept { return bits_; }
  [[nodiscard]] constexpr std::uint16_t region() const noexcept { return static_cast<std::uint16_t>(bits_ >> 48); }
  [[nodiscard]] constexpr std::uint64_t offset() const noexcept { return bits_ & low; }
  [[nodiscard]] constexpr bool operator==(const memory_reference&) const noexcept = default;
  /// Whether it is `bytes` behind `other`.
  [[nodiscard]] constexpr bool is_at(memory_reference other, std::uint64_t bytes) const noexcept {
    return region() == other.region() && offset() == other.offset() + bytes;
  }

 private:
  static constexpr std::uint64_t low = (std::uint64_t{1} << 48) - 1;
  std::uint64_t bits_ = 0;
};

/// The regions that this process has mapped. Changed by the rank's own thread, read by both of its lanes.
class address_map {
 public:
  static constexpr std::size_t most_regions = 64;

  explicit address_map(address_space space) noexcept : space_(space) {}
  address_map(const address_map&) = delete;
  address_map& operator=(const address_map&) = delete;

  [[nodiscard]] address_space space() const noexcept { return space_; }

  /// Only of this rank until it is shared. Throws usage_error when there are too many.
  void add(std::uint16_t region, std::byte* first, std::size_t bytes, where at);
  /// All of `who` have mapped the region that begins at `first`.
  void share(const std::byte* first, const rank_set& who) noexcept;
  void remove(std::uint16_t region) noexcept;

  /// The reference that this rank publishes for `bytes` at `data`, for `peers` to resolve. A region that not all of
  /// them have mapped is ordinary memory to them.
  [[nodiscard]] memory_reference refer(const void* data, std::size_t bytes, const rank_set& peers) const noexcept {
    const auto address = reinterpret_cast<std::uintptr_t>(data);
    if (space_ == address_space::several) {
      for (const mapped_region& each : used()) {
        const std::size_t length = each.bytes.load(std::memory_order_acquire);
        const auto first = reinterpret_cast<std::uintptr_t>(each.first.load(std::memory_order_relaxed));
        if (address >= first && address - first < length && bytes <= length - (address - first)) {
          if (!each.shared_with().includes(peers)) break;
          return {each.region.load(std::memory_order_relaxed), address - first};
        }
      }
    }
    return {0, address};
  }

  /// The address here of what a peer published; null when this process has not mapped it.
  [[nodiscard]] std::byte* resolve(memory_reference what) const noexcept {
    if (space_ == address_space::one) return reinterpret_cast<std::byte*>(what.offset());
    if (what.region() == 0) return nullptr;
    for (const mapped_region& each : used()) {
      const std::size_t length = each.bytes.load(std::memory_order_acquire);
      if (each.region.load(std::memory_order_relaxed) != what.region() || what.offset() >= length) continue;
      return each.first.load(std::memory_order_relaxed) + what.offset();
    }
    return nullptr;
  }
  /// The address here of what this rank itself has published, ordinary memory included.
  [[nodiscard]] std::byte* own(memory_reference what) const noexcept {
    return what.region() == 0 ? reinterpret_cast<std::byte*>(what.offset()) : resolve(what);
  }
  /// True when every rank can load and store what was published.
  [[nodiscard]] bool direct(memory_reference what) const noexcept {
    return space_ == address_space::one || what.region() != 0;
  }

 private:
  struct mapped_region {
    std::atomic<std::byte*> first{nullptr};
    std::atomic<std::size_t> bytes{0};
    std::atomic<std::uint16_t> region{0};
    std::atomic<std::uint32_t> group{rank_set::nobody};  // of a rank_set
    std::atomic<std::uint64_t> ranks{0};

    void share(const rank_set& who) noexcept {
      ranks.store(who.ranks, std::memory_order_relaxed);
      group.store(who.group, std::memory_order_release);
    }
    [[nodiscard]] rank_set shared_with() const noexcept {
      return {group.load(std::memory_order_acquire), ranks.load(std::memory_order_relaxed)};
    }
  };

  [[nodiscard]] std::span<const mapped_region> used() const noexcept {
    return std::span(table_).first(used_.load(std::memory_order_acquire));
  }

  address_space space_;
  std::atomic<std::size_t> used_{0};  // no region is beyond
  std::array<mapped_region, most_regions> table_{};
};

/// Reads `bytes` at `offset` of what another process published, its ordinary memory, into ours. False, with errno, when
/// the kernel does not let us, or it is no ordinary memory.
[[nodiscard]] BELAY_DECL bool read_process(pid_t pid, memory_reference from, std::size_t offset, void* to,
                                           std::size_t bytes) noexcept;

/// Whether the kernel lets this process read ordinary memory of others that were started beside it: asked of its
/// parent, at an address that is never mapped.
[[nodiscard]] BELAY_DECL bool may_read_processes() noexcept;

}  // namespace host
}  // namespace belay::inline BELAY_ABI

#if !defined(BELAY_SEPARATE_COMPILATION)
#include "belay/backend/host/memory/address_map.ipp"  // IWYU pragma: export
#endif
