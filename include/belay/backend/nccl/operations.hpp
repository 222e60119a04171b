// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// How the operations of a group are queued: as NCCL's own, or, where sums are in rank order, as exchanges and a kernel
// that adds what has come in that order. Memory beside the caller's is the rank's workspace, which is used in rounds.
// NCCL compares nothing of what ranks are given: what it cannot be asked is refused here.
// IWYU pragma: private, include "belay/backend/nccl.hpp"
#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <span>
#include <string>

#include "belay/backend/cuda/reduced_slots.hpp"
#include "belay/backend/nccl/channel.hpp"
#include "belay/backend/nccl/communication_memory.hpp"
#include "belay/backend/nccl/nccl_api.hpp"
#include "belay/comm/call_arguments.hpp"
#include "belay/comm/communicator.hpp"
#include "belay/comm/fingerprint.hpp"
#include "belay/comm/op_call.hpp"
#include "belay/comm/p2p.hpp"
#include "belay/comm/reduction.hpp"
#include "belay/core/bounds.hpp"
#include "belay/core/config.hpp"
#include "belay/core/dtype.hpp"
#include "belay/core/error.hpp"
#include "belay/core/where.hpp"

namespace belay::inline BELAY_ABI::nccl {

/// Queues into a rank's channel, as rank `rank` of a communicator of `ranks`. Arguments are checked before. Throws
/// backend_error.
template <cuda::device_api Api, nccl_api N>
class operations {
 public:
  operations(channel<Api, N>& into, typename N::communicator_type on, int rank, int ranks, where at) noexcept
      : into_(&into), on_(on), rank_(rank), ranks_(ranks), at_(at) {}

  // NCCL's.

  void all_reduce(const op_call& call) const {
    if (call.in_count == 0) return;
    expect(api().all_reduce(call.in, call.out, call.in_count, type_of(call), call.how(), on_, stream()), "all_reduce",
           call.in_bytes());
  }
  void reduce_scatter(const op_call& call) const {
    if (call.in_count == 0) return;
    reduce_scatter(call, call.in, call.out, call.out_count);
  }
  void reduce(const op_call& call) const {
    if (call.in_count > 0) reduce(call, call.in, call.out, call.in_count, call.root);
  }
  /// Equal parts by NCCL's reduce_scatter in place, others as a reduce of each rank.
  void reduce_scatter_v(const op_call& call) const {
    const division parts{call.parts(), 1};
    if (call.in_count == 0) return;
    const std::size_t each = call.element_bytes();
    if (parts.even()) {
      const byte_range mine = parts.of(rank_);
      return reduce_scatter(call, call.in, call.out + mine.begin * each, mine.count);
    }
    const grouped all(*this);
    for (int q = 0; q < ranks_; ++q) {
      const byte_range one = parts.of(q);
      if (one.count > 0) reduce(call, call.in + one.begin * each, call.out + one.begin * each, one.count, q);
    }
    all.end();
  }
  void all_gather(const op_call& call) const { all_gather(call.in, call.out, call.in_bytes()); }
  /// Equal parts by NCCL's all_gather in place, others as a broadcast of each rank.
  void all_gather_v(const op_call& call) const {
    const division parts{call.parts(), call.element_bytes()};
    if (call.out_count == 0) return;
    if (parts.even()) {
      const byte_range mine = parts.of(rank_);
      return all_gather(call.out + mine.begin, call.out, mine.count);
    }
    const grouped all(*this);
    for (int q = 0; q < ranks_; ++q) {
      const byte_range one = parts.of(q);
      broadcast(call.out + one.begin, one.count, q);
    }
    all.end();
  }
  /// In place, which NCCL does not offer, by way of the workspace.
  void all_to_all(const op_call& call) const {
    if (call.in_count == 0) return;
    const std::size_t part = call.in_bytes() / size();
    if (call.in == call.out) return swap_parts({call.out, call.out_bytes()}, {{}, part});
    expect(api().all_to_all(call.in, call.out, part, dtype::u8, on_, stream()), "all_to_all", call.in_bytes());
  }
  /// Grouped sends and receives.
  void all_to_all_v(const op_call& call) const {
    const division from{call.parts(), call.element_bytes()}, to{call.received_parts(), call.element_bytes()};
    if (call.in_count > 0 && call.in == call.out) return swap_parts({call.out, call.out_bytes()}, from);
    const byte_range own = from.of(rank_), kept = to.of(rank_);
    if (own.count > 0) into_->stream().copy(call.out + kept.begin, call.in + own.begin, own.count, at_);
    const grouped all(*this);
    for_each_peer([&](int q) {
      send(call.in + from.of(q).begin, from.of(q).count, q);
      receive(call.out + to.of(q).begin, to.of(q).count, q);
    });
    all.end();
  }
  void broadcast(const op_call& call) const { broadcast(call.out, call.out_bytes(), call.root); }
  void gather(const op_call& call) const {
    if (call.in_count == 0) return;
    expect(api().gather(call.in, call.out, call.in_bytes(), dtype::u8, call.root, on_, stream()), "gather",
           call.in_bytes());
  }
  void scatter(const op_call& call) const {
    if (call.out_count == 0) return;
    expect(api().scatter(call.in, call.out, call.out_bytes(), dtype::u8, call.root, on_, stream()), "scatter",
           call.out_bytes());
  }
  /// Of no bytes for anybody, but for what says that all are there.
  void barrier() const {
    std::byte* const word = into_->barrier_word();
    expect(api().all_reduce(word, word, 1, dtype::i32, reduction::maximum, on_, stream()), "barrier", 0);
  }
  void exchange(std::span<const p2p> transfers) const {
    const grouped all(*this);
    for (const p2p& one : transfers) {
      if (one.kind == p2p::direction::send)
        send(static_cast<const std::byte*>(one.data), one.bytes, one.peer);
      else
        receive(static_cast<std::byte*>(one.data), one.bytes, one.peer);
    }
    all.end();
  }

  // In rank order. Of a round each rank adds one part; parts are of equal length, but for what is left at the end.
  // Ranges are in bytes, of whole elements.

  void ordered_all_reduce(const op_call& call) const {
    const std::size_t most = slot_bytes(), all_bytes = call.in_bytes();
    for (std::size_t first = 0; first < all_bytes; first += most * size()) {
      const auto part = [&](int q) {
        const std::size_t begin = lesser_of(first + static_cast<std::size_t>(q) * most, all_bytes);
        return byte_range{begin, lesser_of(begin + most, all_bytes) - begin};
      };
      const byte_range mine = part(rank_);
      collect(call.in, part, mine.count);
      add(call, call.in + mine.begin, call.out + mine.begin, mine.count);
      const grouped all(*this);
      for_each_peer([&](int q) {
        const byte_range theirs = part(q);
        send(call.out + mine.begin, mine.count, q);
        receive(call.out + theirs.begin, theirs.count, q);
      });
      all.end();
    }
  }
  void ordered_reduce_scatter(const op_call& call) const {
    const std::size_t most = slot_bytes(), each = call.out_bytes();
    for (std::size_t first = 0; first < each; first += most) {
      const std::size_t count = lesser_of(most, each - first);
      const auto part = [&](int q) { return byte_range{static_cast<std::size_t>(q) * each + first, count}; };
      collect(call.in, part, count);
      add(call, call.in + part(rank_).begin, call.out + first, count);
    }
  }
  void ordered_reduce_scatter_v(const op_call& call) const {
    const division parts{call.parts(), call.element_bytes()};
    const std::size_t most = slot_bytes();
    const std::size_t longest = parts.longest();
    for (std::size_t first = 0; first < longest; first += most) {
      const auto part = [&](int q) {
        const byte_range all = parts.of(q);
        const std::size_t begin = lesser_of(first, all.count);
        return byte_range{all.begin + begin, lesser_of(all.count - begin, most)};
      };
      const byte_range mine = part(rank_);
      collect(call.in, part, mine.count);
      add(call, call.in + mine.begin, call.out + mine.begin, mine.count);
    }
  }
  void ordered_reduce(const op_call& call) const {
    const std::size_t most = slot_bytes(), all_bytes = call.in_bytes();
    for (std::size_t first = 0; first < all_bytes; first += most) {
      const std::size_t count = lesser_of(most, all_bytes - first);
      const grouped all(*this);
      if (rank_ == call.root)
        for_each_peer([&](int q) { receive(slot(q), count, q); });
      else
        send(call.in + first, count, call.root);
      all.end();
      if (rank_ == call.root) add(call, call.in + first, call.out + first, count);
    }
  }

 private:
  struct byte_range {
    std::size_t begin;
    std::size_t count;
  };
  // A buffer cut into a part for each rank: so many units of `each`, or without counts one.
  struct division {
    std::span<const std::size_t> counts;
    std::size_t each;

    [[nodiscard]] byte_range of(int q) const noexcept {
      if (counts.empty()) return {static_cast<std::size_t>(q) * each, each};
      return {offset_of(counts, q) * each, counts[static_cast<std::size_t>(q)] * each};
    }
    [[nodiscard]] bool even() const noexcept {
      return std::adjacent_find(counts.begin(), counts.end(), std::not_equal_to<>()) == counts.end();
    }
    [[nodiscard]] std::size_t longest() const noexcept {
      return counts.empty() ? each : *std::max_element(counts.begin(), counts.end()) * each;
    }
  };

  // Calls that are one. An exception leaves none open.
  class grouped {
   public:
    explicit grouped(const operations& of) : of_(&of) { of.expect(of.api().group_start(), "group_start", 0); }
    grouped(const grouped&) = delete;
    grouped& operator=(const grouped&) = delete;
    ~grouped() {
      if (open_) static_cast<void>(of_->api().group_end());  // after a failure, which has been told
    }
    void end() const {
      open_ = false;
      of_->expect(of_->api().group_end(), "group_end", 0);
    }

   private:
    const operations* of_;
    mutable bool open_ = true;
  };

  [[nodiscard]] N& api() const noexcept { return into_->lib().api(); }
  [[nodiscard]] typename N::stream_type stream() const noexcept { return into_->stream().handle(); }
  [[nodiscard]] std::size_t size() const noexcept { return static_cast<std::size_t>(ranks_); }
  void expect(const typename N::status_type& got, const char* call, std::size_t bytes) const {
    into_->lib().expect(got, call, bytes, at_);
  }
  [[nodiscard]] static dtype type_of(const op_call& call) noexcept { return static_cast<dtype>(call.type().kind); }
  void reduce_scatter(const op_call& call, const std::byte* in, std::byte* out, std::size_t count) const {
    expect(api().reduce_scatter(in, out, count, type_of(call), call.how(), on_, stream()), "reduce_scatter",
           call.in_bytes());
  }
  void reduce(const op_call& call, const std::byte* in, std::byte* out, std::size_t count, int root) const {
    expect(api().reduce(in, out, count, type_of(call), call.how(), root, on_, stream()), "reduce",
           count * call.element_bytes());
  }
  void all_gather(const std::byte* in, std::byte* out, std::size_t bytes) const {
    if (bytes > 0) expect(api().all_gather(in, out, bytes, dtype::u8, on_, stream()), "all_gather", bytes * size());
  }
  void broadcast(std::byte* inout, std::size_t bytes, int root) const {
    if (bytes > 0) expect(api().broadcast(inout, inout, bytes, dtype::u8, root, on_, stream()), "broadcast", bytes);
  }
  void send(const std::byte* from, std::size_t bytes, int to) const {
    if (bytes > 0) expect(api().send(from, bytes, dtype::u8, to, on_, stream()), "send", bytes);
  }
  void receive(std::byte* to, std::size_t bytes, int from) const {
    if (bytes > 0) expect(api().receive(to, bytes, dtype::u8, from, on_, stream()), "receive", bytes);
  }
  template <class F>
  void for_each_peer(const F& f) const {
    for (int q = 0; q < ranks_; ++q)
      if (q != rank_) f(q);
  }

  // The workspace has a slot for each rank, aligned for any element.
  [[nodiscard]] std::size_t slot_bytes() const {
    constexpr std::size_t alignment = 16;
    const std::size_t bytes = into_->workspace().size_bytes() / size() / alignment * alignment;
    if (bytes == 0)
      throw usage_error("a workspace of " + std::to_string(into_->workspace().size_bytes()) +
                            " bytes is too small for a group of " + std::to_string(ranks_) +
                            " ranks: give the rank 16 bytes for each, or rather some MiB",
                        at_);
    return bytes;
  }
  [[nodiscard]] std::byte* slot(int q) const {
    return into_->workspace().data() + static_cast<std::size_t>(q) * slot_bytes();
  }
  // Sends each rank its part of `in`, and receives what the others have of this rank's into their slots.
  template <class Part>
  void collect(const std::byte* in, const Part& part, std::size_t mine) const {
    const grouped all(*this);
    for_each_peer([&](int q) {
      const byte_range theirs = part(q);
      send(in + theirs.begin, theirs.count, q);
      receive(slot(q), mine, q);
    });
    all.end();
  }
  void add(const op_call& call, const std::byte* own, std::byte* out, std::size_t bytes) const {
    cuda::reduce_slots(into_->stream(), call, {slot(0), slot_bytes(), ranks_, own, rank_}, out,
                       bytes / call.element_bytes());
  }
  // What a rank sends a peer is as long as what it receives of it.
  void swap_parts(std::span<std::byte> inout, const division& parts) const {
    const std::size_t most = slot_bytes(), longest = parts.longest();
    for (std::size_t first = 0; first < longest; first += most) {
      const auto place = [&](int q) {
        const byte_range all = parts.of(q);
        const std::size_t begin = lesser_of(first, all.count);
        return inout.subspan(all.begin + begin, lesser_of(all.count - begin, most));
      };
      const grouped all(*this);
      for_each_peer([&](int q) {
        send(place(q).data(), place(q).size(), q);
        receive(slot(q), place(q).size(), q);
      });
      all.end();
      for_each_peer([&](int q) {
        if (!place(q).empty()) into_->stream().copy(place(q).data(), slot(q), place(q).size(), at_);
      });
    }
  }

  channel<Api, N>* into_;
  typename N::communicator_type on_;
  int rank_;
  int ranks_;
  where at_;
};

/// To say so where a world is made: `nccl::world(api, nccl, control, nccl::adds<nccl::sums::any>{})`.
template <sums>
struct adds {};

/// Throws usage_error for what NCCL or a device cannot be asked. Gives the bytes that messages name.
[[nodiscard]] inline std::size_t expect_queueable(const op_call& call, int rank) {
  cuda::expect_device_type(call);
  const auto own = static_cast<std::size_t>(rank);
  if (call.what() == operation::all_to_all_v && call.parts()[own] != call.received_parts()[own])
    throw usage_error("all_to_all_v: rank " + std::to_string(rank) + " of the group sends itself " +
                          std::to_string(call.parts()[own]) + " elements and expects " +
                          std::to_string(call.received_parts()[own]),
                      call.at);
  std::size_t bytes = greater_of(call.in_bytes(), call.out_bytes());
  if (call.what() == operation::gather) bytes = call.in_bytes();
  if (call.what() == operation::scatter) bytes = call.out_bytes();
  return bytes + total_bytes(call.exchanged());
}

/// Queues what was checked: `operations`, or `single_rank_operations` of one rank.
template <sums Sums, class Operations>
void queue_call(const Operations& on, const op_call& call) {
  if constexpr (requires { on.run(call); }) {
    on.run(call);
  } else {
    const bool ordered = Sums == sums::fixed_order || !reduced_by_nccl(static_cast<dtype>(call.type().kind));
    switch (call.what()) {
      case operation::barrier: return on.barrier();
      case operation::all_reduce: return ordered ? on.ordered_all_reduce(call) : on.all_reduce(call);
      case operation::reduce: return ordered ? on.ordered_reduce(call) : on.reduce(call);
      case operation::reduce_scatter: return ordered ? on.ordered_reduce_scatter(call) : on.reduce_scatter(call);
      case operation::reduce_scatter_v: return ordered ? on.ordered_reduce_scatter_v(call) : on.reduce_scatter_v(call);
      case operation::all_gather: return on.all_gather(call);
      case operation::all_gather_v: return on.all_gather_v(call);
      case operation::all_to_all: return on.all_to_all(call);
      case operation::all_to_all_v: return on.all_to_all_v(call);
      case operation::broadcast: return on.broadcast(call);
      case operation::gather: return on.gather(call);
      case operation::scatter: return on.scatter(call);
      case operation::exchange: return on.exchange(call.exchanged());
      case operation::none:
      case operation::make_symmetric: return;
    }
  }
}

}  // namespace belay::inline BELAY_ABI::nccl
