// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A heap that is the same on every rank of a group: the n-th lease is at the same offset everywhere, so a rank
// knows where its peers' slots are without asking. That holds because leasing is arithmetic on a list that all
// ranks change in the same order; the cross-rank check level compares the lists.
//
// Where ranks can address each other's memory, a store through `slot.at(peer)` is the transfer. Where they cannot,
// `at(peer)` is this rank's mirror of the peer's slot, and ranges travel by messages: `put` from the mirror to the
// slot, `give` from the slot to a peer's mirror, both with the next `signal`. Code that puts, gives and signals runs
// on either kind; on the first one, `put` and `give` have nothing left to do.
//
// A heap may follow a stream, as an arena does: what is released goes to another stream of the rank when that comes
// after its last use. Peers come after by what the ranks synchronise.
//
//   belay::symmetric_heap heap(rank.world(), {.bytes = 1 << 20});
//   const auto slot = heap.lease(4096, "rows");
//   std::memcpy(slot.at(next), row, 64);
//   heap.put(next, slot, 0, 64);
//   heap.synchronize();
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "belay/comm/communicator.hpp"
#include "belay/comm/symmetric_region.hpp"
#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/hash.hpp"
#include "belay/core/where.hpp"
#include "belay/device/offset_allocator.hpp"
#include "belay/device/stream_event.hpp"
#include "belay/device/tier.hpp"

namespace belay::inline BELAY_ABI {

/// All ranks of a group but this one.
template <class Group>
[[nodiscard]] std::vector<int> peers_of(const Group& group) {
  std::vector<int> out;
  for (int peer = 0; peer < group.size(); ++peer)
    if (peer != layout_rank(group)) out.push_back(peer);
  return out;
}

/// Which copy of a range a message is for.
enum class mirror_side : std::uint64_t {
  part,    // the receiver's own part
  mirror,  // the receiver's mirror of the sender's part
};

/// Ranges of one rank's symmetric memory on their way to others.
/// Symmetric memory whose ranks cannot address each other's: each has a mirror of every peer's part, and ranges
/// travel between a part and its mirrors in messages. What is put is copied at once and sent with the next signal,
/// so the receiver's memory changes only while it waits for that.
class put_queue {
 public:
  /// Of a group of so many ranks.
  explicit put_queue(int ranks) : queues_(static_cast<std::size_t>(ranks)) {}

  /// Queues `bytes` from `data` for `peer`, to be stored at `offset` of that side.
  void push(int peer, mirror_side side, std::size_t offset, const std::byte* data, std::size_t bytes) {
    if (bytes == 0) return;
    queue& to = queues_[static_cast<std::size_t>(peer)];
    // Rows that lie side by side become one range.
    if (to.last != nowhere) {
      range_header before = read(to.bytes.data() + to.last);
      if (before.side == side && before.offset + before.bytes == offset) {
        before.bytes += bytes;
        std::memcpy(to.bytes.data() + to.last, &before, sizeof before);
        to.bytes.insert(to.bytes.end(), data, data + bytes);
        return;
      }
    }
    to.last = to.bytes.size();
    const range_header head{side, offset, bytes};
    const auto* raw = reinterpret_cast<const std::byte*>(&head);
    to.bytes.insert(to.bytes.end(), raw, raw + sizeof head);
    to.bytes.insert(to.bytes.end(), data, data + bytes);
  }

  /// Sends what is queued for the ranks `to` and stores what comes from the ranks `from`; each of those calls the
  /// same with this rank on its other list. Throws like an exchange.
  template <class Group>
  void signal(const Group& group, const symmetric_region& memory, std::size_t capacity, std::span<const int> to,
              std::span<const int> from, where at) {
    transfers_.clear();
    for (int peer : to) {
      queue& out = queue_of(peer);
      out.sent = out.bytes.size();
      transfers_.push_back(p2p::send(peer, std::span(&out.sent, 1), lengths_tag));
    }
    for (int peer : from) transfers_.push_back(p2p::receive(peer, std::span(&queue_of(peer).received, 1), lengths_tag));
    group.exchange(transfers_, at);

    transfers_.clear();
    for (int peer : to) {
      const queue& out = queue_of(peer);
      if (out.sent > 0) transfers_.push_back(p2p::send(peer, std::span(out.bytes), ranges_tag));
    }
    for (int peer : from) {
      queue& in = queue_of(peer);
      if (in.received > in.arrived.size()) in.arrived.resize(static_cast<std::size_t>(in.received));
      if (in.received > 0) transfers_.push_back(p2p::receive(peer, in.message(), ranges_tag));
    }
    group.exchange(transfers_, at);
    for (int peer : to) {
      queue_of(peer).bytes.clear();
      queue_of(peer).last = nowhere;
    }
    for (int peer : from) store(group, memory, capacity, peer, queue_of(peer).message(), at);
  }

 private:
  static constexpr std::size_t nowhere = static_cast<std::size_t>(-1);
  static constexpr int lengths_tag = 0x5e01;
  static constexpr int ranges_tag = 0x5e02;

  struct range_header {
    mirror_side side;
    std::uint64_t offset;
    std::uint64_t bytes;
  };
  // To and from one peer. Its memory stays as large as its longest message.
  struct queue {
    std::vector<std::byte> bytes, arrived;
    std::size_t last = nowhere;  // where the head of the last range is
    std::uint64_t sent = 0, received = 0;

    [[nodiscard]] std::span<std::byte> message() noexcept {
      return std::span(arrived).first(static_cast<std::size_t>(received));
    }
  };
  [[nodiscard]] queue& queue_of(int peer) noexcept { return queues_[static_cast<std::size_t>(peer)]; }

  static range_header read(const std::byte* from) noexcept {
    range_header out;
    std::memcpy(&out, from, sizeof out);
    return out;
  }

  template <class Group>
  static void store(const Group& group, const symmetric_region& memory, std::size_t capacity, int from,
                    std::span<const std::byte> message, where at) {
    for (std::size_t place = 0; place + sizeof(range_header) <= message.size();) {
      const range_header head = read(message.data() + place);
      place += sizeof head;
      if (head.bytes > message.size() - place || head.offset > capacity || head.bytes > capacity - head.offset) {
        throw usage_error("rank " + std::to_string(from) + " put " + std::to_string(head.bytes) + " bytes at " +
                              std::to_string(head.offset) + " of symmetric memory of " + std::to_string(capacity),
                          at);
      }
      std::byte* const part = memory.at(head.side == mirror_side::part ? group.rank() : from);
      std::memcpy(part + head.offset, message.data() + place, head.bytes);
      place += head.bytes;
    }
  }

  std::vector<queue> queues_;
  std::vector<p2p> transfers_;
};

/// How much a symmetric heap holds. `bytes` and `max_slots` are the same on every rank; the meter outlives the heap.
struct symmetric_heap_options {
  std::size_t bytes = 0;         // of each rank's part
  std::size_t max_slots = 4096;  // leases at a time
  tier_meter* meter = nullptr;   // counts this rank's leased bytes; null: nothing does
  where at = where::current();   // told of a heap that the standard library makes (`emplace`, `make_unique`)
  const char* when_full = "";    // ends the text of the budget_error of a lease, kept by address
};

/// Symmetric memory of a group of ranks. Made by all of them together; leasing and releasing are local and free of
/// allocation, and every rank does them in the same order. Stays mapped on every rank until the last rank's heap is
/// gone: the destructor is local.
template <class Group>
class symmetric_heap {
  static_assert(has_symmetric_memory<Group>,
                "a symmetric heap needs a group whose ranks can address each other's memory, or one that agrees on its "
                "size and exchanges messages");

 public:
  /// Whether `at(peer)` is the peer's memory itself.
  [[nodiscard]] bool direct() const noexcept { return is_rehearsed(group_) || addresses_peers(group_); }

  /// A lease: a range at one offset on every rank. A plain value; it owns nothing and is void once released.
  class heap_slot {
   public:
    heap_slot() = default;

    /// This rank's bytes, 64-byte aligned. Throws `usage_error` in checked builds when the slot is stale.
    [[nodiscard]] std::byte* local(where at = where::current()) const {
      return this->at(layout_rank(heap_->group_), at);
    }
    /// The slot's bytes on `peer`, a rank of the group, or this rank's mirror of them. When a rank accesses them is up
    /// to the program.
    [[nodiscard]] std::byte* at(int peer, where at = where::current()) const {
      if constexpr (checked(check_level::local)) heap_->expect_live(*this, peer, at);
      return heap_->region_.at(peer) + offset_;
    }
    [[nodiscard]] std::size_t offset_bytes() const noexcept { return offset_; }
    [[nodiscard]] std::size_t size_bytes() const noexcept { return bytes_; }
    [[nodiscard]] std::uint32_t generation() const noexcept { return generation_; }
    /// False for a default-made slot and for one that was released.
    [[nodiscard]] bool live() const noexcept { return heap_ != nullptr && heap_->is_live(*this); }

   private:
    friend class symmetric_heap;
    const symmetric_heap* heap_ = nullptr;
    std::size_t offset_ = 0;
    std::size_t bytes_ = 0;
    std::uint32_t record_ = 0;
    std::uint32_t generation_ = 0;
  };

  /// Collective. Throws `comm_error` (mismatch) when the ranks disagree on the size, `budget_error` when the
  /// system has no memory.
  symmetric_heap(Group group, symmetric_heap_options options, where at = where::current())
      : group_(with_memory(std::move(group), at)),
        region_(make_region(group_, options.bytes, site_of(options, at))),
        post_(direct() ? 0 : group_.size()),
        others_(direct() ? std::vector<int>{} : peers_of(group_)),
        leases_(options.bytes, options.max_slots, options.meter),
        records_(options.max_slots),
        when_full_(options.when_full) {
    for (std::size_t i = records_.size(); i-- > 0;) recycle(static_cast<std::uint32_t>(i));
  }
  symmetric_heap(const symmetric_heap&) = delete;  // slots name their heap
  symmetric_heap& operator=(const symmetric_heap&) = delete;

  /// From here on leases are the stream's whose clock this is, and end in its order. The same on every rank. Until then
  /// they are those of a stream that waits for no other.
  void follow(const std::shared_ptr<stream_clock>& clock) noexcept { leases_.follow(clock); }

  /// The next lease; `tag` (a string that outlives it) is named in errors. Throws `budget_error` when there is
  /// no room and `usage_error` when all slots are in use.
  [[nodiscard]] heap_slot lease(std::size_t bytes, const char* tag, where at = where::current()) {
    const auto allocate = [&](lease_chain& chain) { return leases_.allocate(bytes, chain); };
    return lease_by(allocate, bytes, tag, at);
  }
  /// The next lease, for work of the stream `user` that begins after `ready`, an event of the heap's stream; that work
  /// is said by `used_until`. `tag` (a string that outlives the lease) is named in errors. Throws `budget_error` when
  /// there is no room and `usage_error` when all slots are in use.
  [[nodiscard]] heap_slot lease_for(stream_kind user, const stream_event& ready, std::size_t bytes, const char* tag,
                                    where at = where::current()) {
    const auto allocate = [&](lease_chain& chain) { return leases_.allocate_for(user, ready, bytes, chain); };
    return lease_by(allocate, bytes, tag, at);
  }
  /// Work of another stream uses the slot until `over`; its lease may end before.
  void used_until(const stream_event& over, const heap_slot& used) {
    if (used.bytes_ > 0) leases_.used_until(over, used.offset_, used.bytes_);
  }

  /// Ends a lease. A stale slot is a `usage_error` in checked builds and ignored, but counted, otherwise.
  void release(const heap_slot& lease, where at = where::current()) {
    [[maybe_unused]] const auto turn = checked_call("release of symmetric memory", at);
    if (!is_live(lease)) {
      ++misused_;
      if constexpr (checked(check_level::local)) expect_live(lease, layout_rank(group_), at);
      return;
    }
    end(lease.record_);
  }

  /// Ends every lease: what a step does when handles were lost. Slots still held become stale. A use whose end nobody
  /// has said ends too.
  void reclaim() noexcept {
    leases_.forget_uses();
    if (leases_.offsets().live_bytes() == 0 && live_slots_ == 0 && !leases_.used_by_others()) return;
    for (std::size_t i = 0; i < records_.size(); ++i) {
      if (records_[i].live) retire(static_cast<std::uint32_t>(i));
    }
    leases_.reclaim();
  }

  /// A range of `slot.at(peer)` has been written and goes to the peer's slot; in place there when the next signal to
  /// that peer has been received. Until then it may not be put by another rank.
  void put(int peer, const heap_slot& to, std::size_t offset, std::size_t bytes, where at = where::current()) {
    expect_range(to, peer, offset, bytes, at);
    put_bytes(peer, to.offset_ + offset, bytes);
  }
  /// A range of this rank's own slot has been written and is to be read by `peer` through `at` this rank: it is there
  /// when the next signal to that peer has been received.
  void give(int peer, const heap_slot& from, std::size_t offset, std::size_t bytes, where at = where::current()) {
    expect_range(from, peer, offset, bytes, at);
    give_bytes(peer, from.offset_ + offset, bytes);
  }
  /// Tells the ranks `to` that what this rank has put and given to them is there, and returns when the ranks `from`
  /// have told the same; each of those calls it with this rank on its other list. Throws `comm_error` like an exchange.
  void signal(std::span<const int> to, std::span<const int> from, where at = where::current()) {
    if (direct()) {
      const std::byte token{};
      std::byte taken{};
      std::vector<p2p> transfers;
      for (int peer : to) transfers.push_back(p2p::send(peer, std::span(&token, 0), signal_tag));
      for (int peer : from) transfers.push_back(p2p::receive(peer, std::span(&taken, 0), signal_tag));
      group_.exchange(transfers, at);
    } else {
      post_.signal(group_, region_, leases_.offsets().capacity_bytes(), to, from, at);
    }
  }
  /// Signals between all ranks: what anybody has put and given before is there. Collective.
  void synchronize(where at = where::current()) { synchronize_in(group_, at); }

  /// Puts, gives and signals for work of a stream, which addresses the region by `base` instead of a slot: `place` is
  /// in bytes from the region's begin, and `calls` are those of the same group in the stream, which carry the messages.
  /// One thing at a time, of the host and of streams, puts, gives or signals.
  void put_bytes(int peer, std::size_t place, std::size_t bytes) {
    if (!direct() && peer != layout_rank(group_))
      post_.push(peer, mirror_side::part, place, region_.at(peer) + place, bytes);
  }
  void give_bytes(int peer, std::size_t place, std::size_t bytes) {
    const int me = layout_rank(group_);
    if (!direct() && peer != me) post_.push(peer, mirror_side::mirror, place, region_.at(me) + place, bytes);
  }
  template <class Calls>
  void synchronize_in(const Calls& calls, where at) {
    if (direct())
      calls.barrier(at);
    else
      post_.signal(calls, region_, leases_.offsets().capacity_bytes(), others_, others_, at);
  }

  /// Compares the live slots of all ranks where BELAY_CHECKS is 2, and does nothing elsewhere. Collective;
  /// throws `comm_error` (mismatch) on every rank.
  void audit(where at = where::current()) const {
    if constexpr (checked(check_level::across_ranks)) {
      std::vector<std::uint64_t> all(static_cast<std::size_t>(group_.size()));
      const std::uint64_t mine[] = {digest()};
      control_of(group_).all_gather(std::span<const std::uint64_t>(mine), std::span<std::uint64_t>(all), at);
      comm_error::details what;
      for (int q = 1; q < group_.size(); ++q) {
        if (all[static_cast<std::size_t>(q)] != all[0])
          what.culprits.push_back(group_.members()[static_cast<std::size_t>(q)]);
      }
      if (what.culprits.empty()) return;
      what.fault = comm_fault::mismatch;
      what.operation = "symmetric heap audit";
      what.bytes = leases_.offsets().live_bytes();
      what.message = "the live slots differ from those of the group's first rank; here: " + list();
      what.here = at;
      throw comm_error(std::move(what));
    }
  }

  /// The group; the bytes of each rank's part, those leased now, and the most that were at a time.
  [[nodiscard]] const Group& group() const noexcept { return group_; }
  [[nodiscard]] std::size_t capacity_bytes() const noexcept { return leases_.offsets().capacity_bytes(); }
  [[nodiscard]] std::size_t live_bytes() const noexcept { return leases_.offsets().live_bytes(); }
  [[nodiscard]] std::size_t peak_bytes() const noexcept { return leases_.offsets().peak_bytes(); }
  /// The highest end of any lease so far: what the heap must have held at least.
  [[nodiscard]] std::size_t extent_bytes() const noexcept { return leases_.offsets().extent_bytes(); }
  [[nodiscard]] std::size_t live_slots() const noexcept { return live_slots_; }
  /// Holds the slot that has `address` in this rank's part, so that its bytes go to nobody until `let_go`, whoever
  /// releases the slot before; nothing where none has it. Ranks hold and let go in the same order.
  [[nodiscard]] std::optional<offset_allocator::lease_number> hold(const void* address) noexcept {
    const std::size_t offset = static_cast<std::size_t>(reinterpret_cast<std::uintptr_t>(address) -
                                                        reinterpret_cast<std::uintptr_t>(base(group_.rank())));
    if (offset >= leases_.offsets().capacity_bytes()) return std::nullopt;
    return leases_.offsets().hold(offset);
  }
  void let_go(offset_allocator::lease_number held) noexcept {
    lease_chain over = leases_.offsets().let_go(held);
    if (!over.empty()) leases_.release(over);
  }

  /// Releases of slots that were not live.
  [[nodiscard]] std::uint64_t misused() const noexcept { return misused_; }

  /// Where the region begins on `peer`, as this rank addresses it: for a stream's work, which runs when the slot that
  /// it was queued for may have been released.
  [[nodiscard]] std::byte* base(int peer) const { return region_.at(peer); }

  /// The live slots, for messages: "'dispatch' 4096 bytes at 0 leased at train.cpp:88; ..."
  [[nodiscard]] std::string list() const {
    std::string out;
    for (const record& entry : records_) {
      if (!entry.live) continue;
      out += (out.empty() ? "'" : "; '") + std::string(entry.tag) + "' " + std::to_string(entry.bytes) + " bytes at " +
             std::to_string(entry.offset) + " leased at " + entry.at.text();
    }
    return out.empty() ? "none" : out;
  }

 private:
  // Ranks lease in the same order, so that it is a call of the rank's, where the backend looks after those.
  [[nodiscard]] auto checked_call(const char* what, const where& at) const {
    if constexpr (checked(check_level::local) && requires { group_.checked_call(what, at); }) {
      return group_.checked_call(what, at);
    } else {
      return 0;
    }
  }

  static constexpr std::uint32_t none = 0xffffffffU;
  static constexpr int signal_tag = 0x5e00;

  // Options that were not written as a list of values have the line of their type, here.
  static where site_of(const symmetric_heap_options& options, where at) noexcept {
    const bool known = !options.at.in_standard_library() && std::strcmp(options.at.file, where::current().file) != 0;
    return at.in_standard_library() && known ? options.at : at;
  }
  // Of a group that tells when it runs whether it has such memory, as a rehearsed one does of the world that will run.
  static Group with_memory(Group group, where at) {
    if constexpr (tells_traits<Group>)
      if (const auto& of = group.traits(); !of.addresses_peers && !of.mirrors_peers)
        throw usage_error(
            "a symmetric heap needs a group whose ranks can address each other's memory, or one that agrees on its "
            "size and exchanges messages",
            at);
    return group;
  }
  static symmetric_region make_region(const Group& group, std::size_t bytes, where at) {
    if constexpr (directly_addressable<Group>) {
      return group.make_symmetric(bytes, at);
    } else {
      group.agree_symmetric(bytes, at);
      return symmetric_region::map(group.size(), bytes, backing::when_touched, at);
    }
  }

  struct record {
    lease_chain chain;
    std::size_t offset = 0;
    std::size_t bytes = 0;
    const char* tag = "";
    where at;
    std::uint32_t generation = 0;
    std::uint32_t next = none;
    bool live = false;
  };

  template <class Allocate>
  [[nodiscard]] heap_slot lease_by(const Allocate& allocate, std::size_t bytes, const char* tag, where at) {
    [[maybe_unused]] const auto turn = checked_call("lease of symmetric memory", at);
    if (free_ == none) {
      throw usage_error(
          "all " + std::to_string(records_.size()) + " slots of the symmetric heap are in use, wanted one for " + tag,
          at);
    }
    record& entry = records_[free_];
    const auto offset = allocate(entry.chain);
    if (!offset) {
      throw budget_error(std::string("symmetric heap (") + tag + ")", bytes,
                         leases_.offsets().capacity_bytes() - leases_.offsets().live_bytes(), at, when_full_);
    }
    heap_slot out;
    out.heap_ = this;
    out.offset_ = *offset;
    out.bytes_ = bytes;
    out.record_ = free_;
    out.generation_ = entry.generation;
    entry.offset = *offset;
    entry.bytes = bytes;
    entry.tag = tag;
    entry.at = at;
    entry.live = true;
    free_ = entry.next;
    ++live_slots_;
    return out;
  }

  [[nodiscard]] bool is_live(const heap_slot& lease) const noexcept {
    return lease.heap_ == this && lease.record_ < records_.size() && records_[lease.record_].live &&
           records_[lease.record_].generation == lease.generation_;
  }

  void expect_live(const heap_slot& lease, int peer, where at) const {
    if (!is_live(lease)) {
      throw usage_error("a slot of the symmetric heap (" + std::to_string(lease.bytes_) + " bytes at " +
                            std::to_string(lease.offset_) + ") is used after its release",
                        at);
    }
    if (peer < 0 || peer >= group_.size()) {
      throw usage_error("peer " + std::to_string(peer) + " is no rank of a group of " + std::to_string(group_.size()),
                        at);
    }
  }

  void expect_range(const heap_slot& lease, int peer, std::size_t offset, std::size_t bytes, where at) const {
    if constexpr (checked(check_level::local)) expect_live(lease, peer, at);
    if (offset <= lease.bytes_ && bytes <= lease.bytes_ - offset) return;
    throw usage_error(
        std::to_string(bytes) + " bytes at " + std::to_string(offset) + " of a slot of " + std::to_string(lease.bytes_),
        at);
  }

  void recycle(std::uint32_t index) noexcept {
    records_[index].next = free_;
    free_ = index;
  }
  void end(std::uint32_t index) noexcept {
    leases_.release(records_[index].chain);
    retire(index);
  }
  void retire(std::uint32_t index) noexcept {
    record& entry = records_[index];
    entry.chain = {};
    entry.live = false;
    ++entry.generation;
    --live_slots_;
    recycle(index);
  }

  [[nodiscard]] std::uint64_t digest() const noexcept {
    fnv1a hash(0);
    for (const record& entry : records_) {
      if (!entry.live) continue;
      const std::size_t words[] = {entry.offset, entry.bytes, entry.generation};
      hash.add(shape_of(words));
    }
    return hash.value();
  }

  Group group_;
  symmetric_region region_;
  put_queue post_;
  std::vector<int> others_;  // the peers; where they are mirrored
  stream_leases leases_;
  std::vector<record> records_;
  const char* when_full_;
  std::uint32_t free_ = none;
  std::size_t live_slots_ = 0;
  std::uint64_t misused_ = 0;
};

template <class Group>
symmetric_heap(Group, symmetric_heap_options) -> symmetric_heap<Group>;

}  // namespace belay::inline BELAY_ABI
