// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// How the operations of a group are queued: as NCCL's own, or, where sums are in rank order, as exchanges and a kernel
// that adds what has come in that order. Memory beside the caller's is the rank's workspace, which is used in rounds.
// IWYU pragma: private, include "belay/backend/nccl.hpp"
#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <span>

#include "belay/backend/nccl/channel.hpp"
#include "belay/comm/call_arguments.hpp"
#include "belay/comm/communicator.hpp"
#include "belay/comm/reduction.hpp"
#include "belay/core/bounds.hpp"
#include "belay/core/config.hpp"
#include "belay/core/dtype.hpp"
#include "belay/core/error.hpp"
#include "belay/core/where.hpp"

namespace belay::inline BELAY_ABI::nccl {

/// Adds element i of all ranks in rank order: this rank's are at `own`, those of rank q at `received + q * stride`.
template <reducible T, reduction_tag Op>
struct reduce_in_rank_order {
  const T* received;
  std::size_t stride;
  const T* own;
  T* out;
  int rank;
  int ranks;

  BELAY_HD void operator()(std::size_t i) const {
    using accumulator = accumulator_of<T>;
    accumulator total = static_cast<accumulator>(of(0, i));
    for (int q = 1; q < ranks; ++q) total = Op::apply(total, static_cast<accumulator>(of(q, i)));
    if constexpr (finishing<Op>) total = Op::finish(total, ranks);
    out[i] = static_cast<T>(total);
  }
  BELAY_HD T of(int q, std::size_t i) const {
    return q == rank ? own[i] : received[static_cast<std::size_t>(q) * stride + i];
  }
};

/// Queues into a rank's channel, as rank `rank` of a communicator of `ranks`. Arguments are checked before. Throws
/// backend_error.
template <cuda::device_api Api, nccl_api N>
class operations {
 public:
  operations(channel<Api, N>& into, typename N::communicator_type on, int rank, int ranks, where at) noexcept
      : into_(&into), on_(on), rank_(rank), ranks_(ranks), at_(at) {}

  // NCCL's.

  template <class T, class Op>
  void all_reduce(std::span<const T> in, std::span<T> out, Op) const {
    if (in.empty()) return;
    expect(api().all_reduce(in.data(), out.data(), in.size(), dtype_of<T>, Op::code, on_, stream()), "all_reduce",
           in.size_bytes());
  }
  template <class T, class Op>
  void reduce_scatter(std::span<const T> in, std::span<T> out, Op) const {
    if (in.empty()) return;
    expect(api().reduce_scatter(in.data(), out.data(), out.size(), dtype_of<T>, Op::code, on_, stream()),
           "reduce_scatter", in.size_bytes());
  }
  template <class T, class Op>
  void reduce(std::span<const T> in, std::span<T> out, Op, int root) const {
    if (in.empty()) return;
    expect(api().reduce(in.data(), out.data(), in.size(), dtype_of<T>, Op::code, root, on_, stream()), "reduce",
           in.size_bytes());
  }
  void all_gather(std::span<const std::byte> in, std::span<std::byte> out) const {
    if (in.empty()) return;
    expect(api().all_gather(in.data(), out.data(), in.size(), dtype::u8, on_, stream()), "all_gather", out.size());
  }
  /// Equal parts by NCCL's all_gather in place, others as a broadcast of each rank.
  void all_gather_v(std::span<std::byte> inout, std::span<const std::size_t> counts, std::size_t element) const {
    const division parts{counts, element};
    if (inout.empty()) return;
    if (parts.even()) {
      const range mine = parts.of(rank_);
      return all_gather(inout.subspan(mine.begin, mine.count), inout);
    }
    const grouped all(*this);
    for (int q = 0; q < ranks_; ++q) {
      const range one = parts.of(q);
      broadcast(inout.subspan(one.begin, one.count), q);
    }
    all.end();
  }
  template <class T, class Op>
  void reduce_scatter_v(std::span<T> inout, std::span<const std::size_t> counts, Op op) const {
    const division parts{counts, 1};
    if (inout.empty()) return;
    if (parts.even()) {
      const range mine = parts.of(rank_);
      return reduce_scatter<T>(inout, inout.subspan(mine.begin, mine.count), op);
    }
    const grouped all(*this);
    for (int q = 0; q < ranks_; ++q) {
      const range one = parts.of(q);
      const std::span<T> part = inout.subspan(one.begin, one.count);
      reduce<T>(part, part, op, q);
    }
    all.end();
  }
  /// In place, which NCCL does not offer, by way of the workspace.
  void all_to_all(std::span<const std::byte> in, std::span<std::byte> out) const {
    if (in.empty()) return;
    const std::size_t part = in.size() / size();
    if (in.data() == out.data()) return swap_parts(out, {{}, part});
    expect(api().all_to_all(in.data(), out.data(), part, dtype::u8, on_, stream()), "all_to_all", in.size());
  }
  /// Grouped sends and receives.
  void all_to_all_v(std::span<const std::byte> in, std::span<const std::size_t> sent, std::span<std::byte> out,
                    std::span<const std::size_t> received, std::size_t element) const {
    const division from{sent, element}, to{received, element};
    if (!in.empty() && in.data() == out.data()) return swap_parts(out, from);
    const range own = from.of(rank_), kept = to.of(rank_);
    if (own.count > 0) into_->stream().copy(out.data() + kept.begin, in.data() + own.begin, own.count, at_);
    const grouped all(*this);
    for_each_peer([&](int q) {
      send(in.data() + from.of(q).begin, from.of(q).count, q);
      receive(out.data() + to.of(q).begin, to.of(q).count, q);
    });
    all.end();
  }
  void broadcast(std::span<std::byte> inout, int root) const {
    if (inout.empty()) return;
    expect(api().broadcast(inout.data(), inout.data(), inout.size(), dtype::u8, root, on_, stream()), "broadcast",
           inout.size());
  }
  void gather(std::span<const std::byte> in, std::span<std::byte> out, int root) const {
    if (in.empty()) return;
    expect(api().gather(in.data(), out.data(), in.size(), dtype::u8, root, on_, stream()), "gather", in.size());
  }
  void scatter(std::span<const std::byte> in, std::span<std::byte> out, int root) const {
    if (out.empty()) return;
    expect(api().scatter(in.data(), out.data(), out.size(), dtype::u8, root, on_, stream()), "scatter", out.size());
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

  template <class T, class Op>
  void ordered_all_reduce(std::span<const T> in, std::span<T> out, Op) const {
    const std::size_t most = slot_elements<T>();
    for (std::size_t first = 0; first < in.size(); first += most * size()) {
      const auto part = [&](int q) {
        const std::size_t begin = lesser_of(first + static_cast<std::size_t>(q) * most, in.size());
        return range{begin, lesser_of(begin + most, in.size()) - begin};
      };
      const range mine = part(rank_);
      collect<T>(in, part, mine.count);
      add<T, Op>(in.data() + mine.begin, out.data() + mine.begin, mine.count);
      const grouped all(*this);
      for_each_peer([&](int q) {
        const range theirs = part(q);
        send(out.data() + mine.begin, mine.count, q);
        receive(out.data() + theirs.begin, theirs.count, q);
      });
      all.end();
    }
  }
  template <class T, class Op>
  void ordered_reduce_scatter(std::span<const T> in, std::span<T> out, Op) const {
    const std::size_t most = slot_elements<T>();
    for (std::size_t first = 0; first < out.size(); first += most) {
      const std::size_t count = lesser_of(most, out.size() - first);
      const auto part = [&](int q) { return range{static_cast<std::size_t>(q) * out.size() + first, count}; };
      collect<T>(in, part, count);
      add<T, Op>(in.data() + part(rank_).begin, out.data() + first, count);
    }
  }
  template <class T, class Op>
  void ordered_reduce_scatter_v(std::span<T> inout, std::span<const std::size_t> counts, Op) const {
    const division parts{counts, 1};
    const std::size_t most = slot_elements<T>();
    const std::size_t longest = parts.longest();
    for (std::size_t first = 0; first < longest; first += most) {
      const auto part = [&](int q) {
        const range all = parts.of(q);
        const std::size_t begin = lesser_of(first, all.count);
        return range{all.begin + begin, lesser_of(all.count - begin, most)};
      };
      const range mine = part(rank_);
      collect<T>(inout, part, mine.count);
      add<T, Op>(inout.data() + mine.begin, inout.data() + mine.begin, mine.count);
    }
  }
  template <class T, class Op>
  void ordered_reduce(std::span<const T> in, std::span<T> out, Op, int root) const {
    const std::size_t most = slot_elements<T>();
    for (std::size_t first = 0; first < in.size(); first += most) {
      const std::size_t count = lesser_of(most, in.size() - first);
      const grouped all(*this);
      if (rank_ == root)
        for_each_peer([&](int q) { receive(slot<T>(q), count, q); });
      else
        send(in.data() + first, count, root);
      all.end();
      if (rank_ == root) add<T, Op>(in.data() + first, out.data() + first, count);
    }
  }

 private:
  struct range {
    std::size_t begin;
    std::size_t count;
  };
  // A buffer cut into a part for each rank: so many units of `each`, or without counts one.
  struct division {
    std::span<const std::size_t> counts;
    std::size_t each;

    [[nodiscard]] range of(int q) const noexcept {
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
  template <class T>
  void send(const T* from, std::size_t count, int to) const {
    if (count == 0) return;
    expect(api().send(from, count * sizeof(T), dtype::u8, to, on_, stream()), "send", count * sizeof(T));
  }
  template <class T>
  void receive(T* to, std::size_t count, int from) const {
    if (count == 0) return;
    expect(api().receive(to, count * sizeof(T), dtype::u8, from, on_, stream()), "receive", count * sizeof(T));
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
  template <class T>
  [[nodiscard]] std::size_t slot_elements() const {
    return slot_bytes() / sizeof(T);
  }
  template <class T>
  [[nodiscard]] T* slot(int q) const {
    return reinterpret_cast<T*>(into_->workspace().data() + static_cast<std::size_t>(q) * slot_bytes());
  }
  // Sends each rank its part of `in`, and receives what the others have of this rank's into their slots.
  template <class T, class Part>
  void collect(std::span<const T> in, const Part& part, std::size_t mine) const {
    const grouped all(*this);
    for_each_peer([&](int q) {
      const range theirs = part(q);
      send(in.data() + theirs.begin, theirs.count, q);
      receive(slot<T>(q), mine, q);
    });
    all.end();
  }
  template <class T, class Op>
  void add(const T* own, T* out, std::size_t count) const {
    into_->stream().each(count, reduce_in_rank_order<T, Op>{slot<T>(0), slot_elements<T>(), own, out, rank_, ranks_});
  }
  // What a rank sends a peer is as long as what it receives of it.
  void swap_parts(std::span<std::byte> inout, const division& parts) const {
    const std::size_t most = slot_bytes(), longest = parts.longest();
    for (std::size_t first = 0; first < longest; first += most) {
      const auto place = [&](int q) {
        const range all = parts.of(q);
        const std::size_t begin = lesser_of(first, all.count);
        return inout.subspan(all.begin + begin, lesser_of(all.count - begin, most));
      };
      const grouped all(*this);
      for_each_peer([&](int q) {
        send(place(q).data(), place(q).size(), q);
        receive(slot<std::byte>(q), place(q).size(), q);
      });
      all.end();
      for_each_peer([&](int q) {
        if (!place(q).empty()) into_->stream().copy(place(q).data(), slot<std::byte>(q), place(q).size(), at_);
      });
    }
  }

  channel<Api, N>* into_;
  typename N::communicator_type on_;
  int rank_;
  int ranks_;
  where at_;
};

}  // namespace belay::inline BELAY_ABI::nccl
