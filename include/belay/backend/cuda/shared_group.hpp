// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What the ranks of a group that share a device have in common, as threads of one process: slots in the memory of the
// device, the events that they hand over to each other, what each calls, and what they send each other.
// IWYU pragma: private, include "belay/backend/cuda/group.hpp"
#pragma once

#include <array>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "belay/backend/cuda/device.hpp"
#include "belay/backend/cuda/memory.hpp"
#include "belay/backend/cuda/stream.hpp"
#include "belay/comm/fingerprint.hpp"
#include "belay/comm/start_order.hpp"
#include "belay/comm/symmetric_region.hpp"
#include "belay/core/checked_size.hpp"
#include "belay/core/config.hpp"
#include "belay/core/where.hpp"
#include "belay/device/offset_allocator.hpp"
#include "belay/kernel/elementwise.hpp"

namespace belay::inline BELAY_ABI::cuda {

/// Symmetric memory of ranks that share a device: one allocation, with a part for each rank, side by side. All address
/// all of it.
template <device_api Api>
class shared_parts {
 public:
  /// `bytes` for each of `ranks` ranks, of zeros, which `in` has written. Throws backend_error.
  shared_parts(stream<Api>& in, int ranks, std::size_t bytes, where at)
      : ranks_(ranks), stride_(leased_size(bytes)), memory_(in.state()->on(), all_of(ranks, stride_), at) {
    const std::size_t words = memory_.size_bytes() / sizeof(std::uint64_t);
    in.each(words, kernel::fill<std::uint64_t>{reinterpret_cast<std::uint64_t*>(memory_.data()), 0});
    in.synchronize(at);
  }

  /// As one rank holds it.
  [[nodiscard]] static symmetric_region region_of(std::shared_ptr<const shared_parts> parts) {
    auto* const held = new std::shared_ptr<const shared_parts>(std::move(parts));
    const auto release = [](void* last) noexcept { delete static_cast<std::shared_ptr<const shared_parts>*>(last); };
    return symmetric_region::adopt((*held)->ranks_, (*held)->stride_, (*held)->memory_.data(), held, release);
  }

 private:
  [[nodiscard]] static std::size_t all_of(int ranks, std::size_t stride) noexcept {
    return (checked_size(stride) * static_cast<std::size_t>(ranks)).saturated();
  }

  int ranks_;
  std::size_t stride_;
  device_memory<Api> memory_;
};

/// One send, as long as its rank waits for it.
template <device_api Api>
struct parcel {
  const std::byte* data = nullptr;
  std::size_t bytes = 0;
  int tag = 0;
  int to = 0;  // a rank of the group
  where at;
  typename Api::event_type given{};  // its bytes are there
  typename Api::event_type taken{};  // its receiver has copied them
  bool is_taken = false;
};

/// The lock and the signal by which host threads of ranks that share a device wait for each other. An Api may bring a
/// `meeting_type` of its own, made of the Api: it decides then who goes on, as a device of tests does.
struct host_meeting {
  explicit host_meeting(const auto& /*api*/) {}
  /// The lock of what is posted, and the signal that something was.
  std::mutex mutex;
  std::condition_variable news;
};
/// The meeting of an Api: its own `meeting_type`, or else `host_meeting`.
template <class Api>
struct meeting_of {
  using type = host_meeting;
};
template <class Api>
  requires requires { typename Api::meeting_type; }
struct meeting_of<Api> {
  using type = typename Api::meeting_type;
};

/// The buffers that a rank lets its peers read where they lie: its input, and the output that it makes a part of.
struct given_buffers {
  const std::byte* in = nullptr;
  const std::byte* out = nullptr;
};

/// Every rank has two slots, which it uses in turns: it fills one, records `filled`, and all ranks meet; who reads it
/// waits for that event, and records `emptied` afterwards. A rank fills a slot again two rounds later: it has met its
/// peers in between, so their `emptied` is recorded by then, and its streams wait for it. An event is recorded again
/// only after all who wait for the earlier place have queued that. Where peers read a rank's buffers, those take the
/// place of its slot: `filled` says that they hold what is read, `emptied` that a peer has read, and all meet again to
/// hand that over.
template <device_api Api>
class shared_group {
 public:
  using event_type = typename Api::event_type;

  /// The call of a rank; each rank has two, used in turns as its slots are. `sent` are the counts of elements that it
  /// sends to each rank, `expected` those that it expects of each.
  struct call {
    fingerprint print;
    where at;
    std::vector<std::size_t> sent, expected;
    given_buffers given = {};
  };

  /// `slots` has 2 x `size` slots of `slot_bytes` each in `memory`.
  shared_group(const device<Api>& on, int size, std::byte* slot_memory, std::size_t slot_bytes,
               std::shared_ptr<const void> memory, where at)
      : memory_(std::move(memory)),
        device_(&on),
        size_(static_cast<std::size_t>(size)),
        slots_(slot_memory),
        slot_bytes_(slot_bytes),
        given_(size_),
        calls_(2 * size_, call{{}, {}, std::vector<std::size_t>(size_), std::vector<std::size_t>(size_), {}}),
        meeting_(on.api()) {
    events_.reserve(kinds * size_);
    try {
      while (events_.size() < kinds * size_) {
        event_type made{};
        on.expect(on.api().make_event(made), "make_event", 0, at);
        events_.push_back(made);
      }
    } catch (...) {
      destroy();
      throw;
    }
    for (auto& of_lane : posted_) of_lane.resize(size_ * size_);
  }
  shared_group(const shared_group&) = delete;
  shared_group& operator=(const shared_group&) = delete;
  ~shared_group() { destroy(); }

  [[nodiscard]] std::size_t slot_bytes() const noexcept { return slot_bytes_; }
  /// From a rank's slot to that of the next rank.
  [[nodiscard]] std::byte* slot(std::size_t turn, std::size_t rank) const noexcept {
    return slots_ + (turn * size_ + rank) * slot_bytes_;
  }
  [[nodiscard]] event_type filled(std::size_t turn, std::size_t rank) const noexcept {
    return events_[turn * size_ + rank];
  }
  [[nodiscard]] event_type emptied(std::size_t turn, std::size_t rank) const noexcept {
    return events_[(2 + turn) * size_ + rank];
  }
  /// Of transfers, of a rank's calls in each lane.
  [[nodiscard]] event_type given(lane of, std::size_t rank) const noexcept {
    return events_[(4 + index(of)) * size_ + rank];
  }
  [[nodiscard]] event_type taken(lane of, std::size_t rank) const noexcept {
    return events_[(6 + index(of)) * size_ + rank];
  }

  /// Gives what one rank has made to all; each takes it by `take_given` after they have met.
  void give_all(const std::shared_ptr<const shared_parts<Api>>& what) {
    for (auto& each : given_) each = what;
  }
  [[nodiscard]] std::shared_ptr<const shared_parts<Api>> take_given(std::size_t rank) noexcept {
    return std::exchange(given_[rank], nullptr);
  }

  [[nodiscard]] call& called(std::size_t turn, std::size_t rank) noexcept { return calls_[turn * size_ + rank]; }

  /// The lock of what is posted, and the signal: a rank that has posted or taken something notifies.
  [[nodiscard]] auto& posting() noexcept { return meeting_.mutex; }
  [[nodiscard]] auto& news() noexcept { return meeting_.news; }
  /// The sends of one rank to another, in order.
  [[nodiscard]] std::vector<parcel<Api>*>& posted(lane of, std::size_t from, std::size_t to) noexcept {
    return posted_[index(of)][from * size_ + to];
  }

 private:
  static constexpr std::size_t kinds = 8;

  void destroy() noexcept {
    for (const event_type& each : events_) device_->note(device_->api().destroy_event(each), "destroy_event");
  }

  std::shared_ptr<const void> memory_;
  const device<Api>* device_;
  std::size_t size_;
  std::byte* slots_;
  std::size_t slot_bytes_;
  std::vector<std::shared_ptr<const shared_parts<Api>>> given_;
  std::vector<event_type> events_;
  std::vector<call> calls_;
  typename meeting_of<Api>::type meeting_;
  std::array<std::vector<std::vector<parcel<Api>*>>, 2> posted_;  // by lane
};

}  // namespace belay::inline BELAY_ABI::cuda
