// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Sends and receives of ranks that share a device. A sender posts where its bytes are, and the event after which they
// are there; the receiver's stream waits for that, copies them, and records when it has. The sender's stream waits for
// that in turn: nothing is staged.
// IWYU pragma: private, include "belay/backend/cuda/group.hpp"
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "belay/backend/cuda/group_member.hpp"
#include "belay/backend/cuda/shared_group.hpp"
#include "belay/backend/cuda/stream.hpp"
#include "belay/comm/abort_cause.hpp"
#include "belay/comm/async_stream.hpp"
#include "belay/comm/communicator.hpp"
#include "belay/comm/fingerprint.hpp"
#include "belay/comm/start_order.hpp"
#include "belay/core/bounds.hpp"
#include "belay/core/config.hpp"
#include "belay/core/printable.hpp"
#include "belay/core/where.hpp"

namespace belay::inline BELAY_ABI::cuda {

template <device_api Api, control_rank ControlRank>
class shared_transfers {
 public:
  using duration = std::chrono::steady_clock::duration;

  shared_transfers(group_member<Api, ControlRank>& member, cuda::stream<Api>& stream, lane of, duration limit,
                   const where& at) noexcept
      : member_(&member), shared_(&member.shared()), stream_(&stream), lane_(of), limit_(limit), at_(at) {}

  /// Returns when each transfer has met its partner, and is queued.
  void run(std::span<const p2p> transfers) const {
    std::vector<parcel<Api>>& sends = member_->parcels(lane_);
    std::vector<const p2p*>& receives = member_->receives(lane_);
    sends.clear();
    receives.clear();
    for (const p2p& one : transfers) {
      if (one.kind == p2p::direction::receive)
        receives.push_back(&one);
      else
        sends.push_back({static_cast<const std::byte*>(one.data),
                         one.bytes,
                         one.tag,
                         one.peer,
                         at_,
                         shared_->given(lane_, member_->rank()),
                         {},
                         false});
    }
    if (!sends.empty()) expect(api().record(shared_->given(lane_, member_->rank()), stream_->handle()), "record");
    const auto begun = member_->world().now();
    const posted_sends posted(*this, sends);
    std::unique_lock lock(shared_->posting());
    for (;;) {
      const std::size_t before = receives.size();
      std::erase_if(receives, [&](const p2p* one) { return take(*one); });
      if (receives.size() < before) shared_->news().notify_all();
      if (receives.empty() && std::all_of(sends.begin(), sends.end(), [](const auto& one) { return one.is_taken; }))
        break;
      expect_more(sends, receives, begun);
      shared_->news().wait_for(lock, std::chrono::milliseconds(2));
    }
    lock.unlock();
    for (const parcel<Api>& one : sends) expect(api().wait(stream_->handle(), one.taken), "wait");
  }

 private:
  // Sends as long as peers see them.
  class posted_sends {
   public:
    posted_sends(const shared_transfers& owner, std::vector<parcel<Api>>& sends) : owner_(&owner), sends_(&sends) {
      const std::lock_guard lock(owner.shared_->posting());
      for (parcel<Api>& one : sends) owner.queue_to(one.to).push_back(&one);
      owner.shared_->news().notify_all();
    }
    posted_sends(const posted_sends&) = delete;
    posted_sends& operator=(const posted_sends&) = delete;
    ~posted_sends() {
      const std::lock_guard lock(owner_->shared_->posting());
      for (parcel<Api>& one : *sends_) std::erase(owner_->queue_to(one.to), &one);
    }

   private:
    const shared_transfers* owner_;
    std::vector<parcel<Api>>* sends_;
  };

  [[nodiscard]] std::vector<parcel<Api>*>& queue_to(int peer) const {
    return shared_->posted(lane_, member_->rank(), static_cast<std::size_t>(peer));
  }

  // Under the lock: whether the next send of the peer was there.
  [[nodiscard]] bool take(const p2p& into) const {
    auto& posted = shared_->posted(lane_, static_cast<std::size_t>(into.peer), member_->rank());
    const auto next = std::find_if(posted.begin(), posted.end(), [](const auto* one) { return !one->is_taken; });
    if (next == posted.end()) return false;
    parcel<Api>& found = **next;
    if (found.bytes != into.bytes || found.tag != into.tag) refuse(found, into);
    if (into.bytes > 0) {
      expect(api().wait(stream_->handle(), found.given), "wait");
      if (into.data != found.data) stream_->copy(into.data, found.data, into.bytes, at_);
    }
    found.taken = shared_->taken(lane_, member_->rank());
    expect(api().record(found.taken, stream_->handle()), "record");
    found.is_taken = true;
    return true;
  }
  [[noreturn]] void refuse(const parcel<Api>& sent, const p2p& into) const {
    const int from = member_->world_rank(into.peer), to = member_->world_rank(static_cast<int>(member_->rank()));
    const auto bytes_and_tag = [](std::size_t bytes, int tag) {
      return std::to_string(bytes) + " bytes with tag " + std::to_string(tag);
    };
    abort_cause why;
    why.fault = comm_fault::mismatch;
    why.culprits = {lesser_of(from, to), greater_of(from, to)};
    if (from == to) why.culprits.pop_back();
    why.message = "rank " + std::to_string(from) + " sends " + bytes_and_tag(sent.bytes, sent.tag) + " at " +
                  sent.at.text() + ", and rank " + std::to_string(to) + " expects " +
                  bytes_and_tag(into.bytes, into.tag) + " at " + at_.text();
    why.there = sent.at.text();
    member_->fail(why, operation::exchange, at_);
  }
  // Throws where a transfer will never meet its partner.
  void expect_more(const std::vector<parcel<Api>>& sends, const std::vector<const p2p*>& receives,
                   std::chrono::steady_clock::time_point begun) const {
    auto& world = member_->world();
    if (has_failed(world)) member_->raise(operation::exchange, at_);
    const bool late = world.now() - begun >= limit_;
    std::vector<int> awaited;
    const auto look = [&](int peer) {
      const int rank = member_->world_rank(peer);
      if (late || world.left(rank, lane_)) awaited.push_back(rank);
    };
    for (const auto& one : sends)
      if (!one.is_taken) look(one.to);
    for (const p2p* one : receives) look(one->peer);
    if (awaited.empty()) return;
    std::sort(awaited.begin(), awaited.end());
    awaited.erase(std::unique(awaited.begin(), awaited.end()), awaited.end());
    abort_cause why;
    why.fault = late ? comm_fault::timeout : comm_fault::peer_failed;
    why.culprits = awaited;
    why.message = ranks_text(awaited) + (late ? " did not come to" : " returned and never entered") +
                  " the exchange of " + "rank " +
                  std::to_string(member_->world_rank(static_cast<int>(member_->rank()))) + " at " + at_.text();
    member_->fail(why, operation::exchange, at_);
  }

  [[nodiscard]] Api& api() const noexcept { return stream_->api(); }
  void expect(const typename Api::status_type& got, const char* call) const { stream_->expect(got, call, 0, at_); }

  group_member<Api, ControlRank>* member_;
  shared_group<Api>* shared_;
  cuda::stream<Api>* stream_;
  lane lane_;
  duration limit_;
  where at_;
};

}  // namespace belay::inline BELAY_ABI::cuda
