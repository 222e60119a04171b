// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The memory that the ranks of a world share: their identities, their health, their flight recorders and the state of
// their groups. It holds no pointers, because each process maps it elsewhere. Its first state is all zeros, which is
// what fresh pages are. Threads share it as anonymous memory, processes as a sealed segment.
// IWYU pragma: private, include "belay/backend/host.hpp"
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

#include "belay/backend/host/copy/calibration.hpp"
#include "belay/backend/host/failure/abort_flag.hpp"
#include "belay/backend/host/memory/address_map.hpp"
#include "belay/backend/host/rendezvous/peer_flags.hpp"
#include "belay/comm/event_count.hpp"
#include "belay/comm/flight_recorder.hpp"
#include "belay/comm/start_order.hpp"
#include "belay/core/config.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

using doorbell = event_count<sharing::several_processes>;

/// Text in shared memory; what does not fit is cut.
template <std::size_t Capacity>
class shared_text {
 public:
  void set(const std::string& text) noexcept {
    length_ = text.size() < Capacity ? static_cast<std::uint32_t>(text.size()) : std::uint32_t{Capacity};
    for (std::size_t i = 0; i < length_; ++i) bytes_[i] = text[i];
  }
  [[nodiscard]] std::string get() const { return std::string(bytes_, length_ < Capacity ? length_ : Capacity); }

 private:
  std::uint32_t length_ = 0;
  char bytes_[Capacity] = {};
};

/// Why a world stopped, as its ranks share it.
struct shared_cause {
  static constexpr std::uint32_t most_culprits = 64;
  std::uint32_t fault = 0;
  std::uint32_t culprit_count = 0;
  std::int32_t culprits[most_culprits] = {};
  std::int32_t signal = 0;
  std::int32_t exit_code = -1;
  std::uint32_t thrown = 0;  // an error_kind
  std::uint64_t at_us = 0;   // by the world's clock
  shared_text<4096> message;
  shared_text<256> there;
};

/// One rank, as its peers see it. Its owner notifies a doorbell when it has published what peers may wait for. That
/// happens in every call, from a thread for each lane: nothing else is in the same cache lines.
struct alignas(cache_line_pair_bytes) rank_block {
  struct alignas(cache_line_pair_bytes) lane_doorbell : doorbell {};
  lane_doorbell doorbells[lane_count];
  std::atomic<std::uint32_t> left[lane_count] = {};
  alignas(64) std::atomic<std::int32_t> pid{0};  // 0: a thread
  std::atomic<std::uint32_t> reads_others{0};    // the kernel lets it read its peers' ordinary memory
  std::atomic<std::uint32_t> core_count{0};      // 0: it has not joined yet
  std::atomic<std::uint64_t> cores[16] = {};     // on which it may run, one bit each
  flight_recorder<> recorders[lane_count];
};

/// The numbers by which a control block is made; equal on all ranks.
struct control_shape {
  std::int32_t ranks = 1;
  address_space space = address_space::one;
  std::uint64_t staging_bytes = 0;  // of each rank and lane, for buffers that peers cannot see
  std::uint64_t group_bytes = 0;    // for the state of all groups together
  std::int64_t timeout_ns = 0;
  std::int64_t stall_ns = 0;
  std::uint64_t job = 0;    // names the run in files
  std::uint32_t epoch = 0;  // counts the times that survivors went on without others
  std::uint32_t algorithm = 0;
};

/// The directory of groups; see group_directory.
struct shared_group_entry {
  std::atomic<std::uint32_t> state{0};
  std::uint32_t size = 0;
  std::uint32_t id = 0;
  std::atomic<std::uint32_t> released{0};
  std::uint64_t generation = 0;
  std::uint64_t offset = 0;  // of the block in the groups' memory
  std::uint64_t bytes = 0;
};

struct control_header {
  static constexpr std::uint64_t right_magic = 0x62656c61795f6331ULL;
  static constexpr std::uint32_t right_version = 6;
  static constexpr std::size_t most_groups = 1024;

  std::uint64_t magic = 0;
  std::uint32_t version = 0;
  std::uint64_t bytes = 0;
  control_shape shape;

  alignas(64) abort_flag<> abort;
  shared_cause cause;
  copy_table copies;                       // of this machine, before any rank's body
  std::atomic<std::uint32_t> reported{0};  // the failure has been reported to the user

  alignas(64) std::atomic<std::int32_t> cores{0};  // on which any rank may run; 0: not all have joined
  alignas(64) std::atomic<std::uint32_t> registry_lock{0};
  std::uint32_t next_group = 0;
  std::uint64_t groups_used = 0;
  shared_group_entry groups[most_groups];
};

/// A control block as this process sees it. A plain view: the memory has another owner.
class control_block {
 public:
  static constexpr std::int32_t most_ranks = 1 << 16;

  control_block() = default;

  /// More than any memory holds where the shape says so, as that of another process may.
  [[nodiscard]] static std::size_t bytes_for(const control_shape& shape) noexcept { return parts_of(shape).end; }
  /// Over fresh, zeroed memory of `bytes_for(shape)` bytes.
  [[nodiscard]] static control_block make(std::byte* memory, const control_shape& shape) noexcept;
  /// Over memory that another process made. Throws input_error if it is anything else.
  [[nodiscard]] static control_block attach(std::byte* memory, std::size_t bytes);

  [[nodiscard]] explicit operator bool() const noexcept { return memory_ != nullptr; }
  [[nodiscard]] const control_shape& shape() const noexcept { return shape_; }
  [[nodiscard]] control_header& header() const noexcept { return *reinterpret_cast<control_header*>(memory_); }
  [[nodiscard]] rank_block& seat(int rank) const noexcept {
    return reinterpret_cast<rank_block*>(memory_ + parts_.seats)[rank];
  }
  /// Bounce buffers of a rank, for what its peers cannot see; 64-byte aligned.
  [[nodiscard]] std::byte* staging(int rank, lane which) const noexcept {
    return memory_ + parts_.staging +
           (static_cast<std::size_t>(rank) * lane_count + index(which)) * shape_.staging_bytes;
  }
  [[nodiscard]] std::byte* groups() const noexcept { return memory_ + parts_.groups; }

 private:
  struct parts {
    std::size_t seats = 0, staging = 0, groups = 0, end = 0;
  };
  [[nodiscard]] static parts parts_of(const control_shape& shape) noexcept;

  control_block(std::byte* memory, const control_shape& shape) noexcept
      : memory_(memory), shape_(shape), parts_(parts_of(shape)) {}

  std::byte* memory_ = nullptr;
  control_shape shape_;
  parts parts_;
};

}  // namespace host
}  // namespace belay::inline BELAY_ABI

#if !defined(BELAY_SEPARATE_COMPILATION)
#include "belay/backend/host/memory/control_block.ipp"  // IWYU pragma: export
#endif
