// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A collective of ranks that share a device, as one of them queues it. In each round the rank copies what it sends into
// its slot, meets the others, and copies or adds what it needs of their slots: all in the order of one stream, which
// waits for what the peers have recorded. So a buffer is touched by its own rank's stream alone.
// IWYU pragma: private, include "belay/backend/cuda/group.hpp"
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>

#include "belay/backend/cuda/group_member.hpp"
#include "belay/backend/cuda/shared_group.hpp"
#include "belay/backend/cuda/stream.hpp"
#include "belay/comm/call_mismatch.hpp"
#include "belay/comm/fingerprint.hpp"
#include "belay/core/bounds.hpp"
#include "belay/core/config.hpp"
#include "belay/core/function_ref.hpp"
#include "belay/core/where.hpp"

namespace belay::inline BELAY_ABI::cuda {

/// `Calls` are the blocking operations of the group's twin in the control world.
template <device_api Api, control_rank ControlRank, class Calls>
class shared_rounds {
 public:
  shared_rounds(group_member<Api, ControlRank>& member, cuda::stream<Api>& stream, const Calls& calls,
                const where& at) noexcept
      : member_(&member), stream_(&stream), calls_(&calls), at_(at) {}

  [[nodiscard]] int size() const noexcept { return member_->size(); }
  [[nodiscard]] std::size_t rank() const noexcept { return member_->rank(); }
  [[nodiscard]] const where& at() const noexcept { return at_; }
  [[nodiscard]] cuda::stream<Api>& stream() const noexcept { return *stream_; }

  /// The pieces that this rank sends, and those that it takes, one of each rank: the operation fills in both.
  [[nodiscard]] std::span<piece> sent() const noexcept { return member_->sent(); }
  [[nodiscard]] std::span<piece> taken() const noexcept { return member_->taken(); }
  /// Notes, in elements, how this rank divides its buffers: the counts that it sends to each rank and expects of each.
  void note_counts(std::span<const std::size_t> sent, std::span<const std::size_t> expected) const {
    auto& mine = member_->call_of(static_cast<int>(rank()));
    std::copy(sent.begin(), sent.end(), mine.sent.begin());
    std::copy(expected.begin(), expected.end(), mine.expected.begin());
  }

  /// Puts the first `pieces` of `sent` where peers see them; takes the piece number `place` of each rank, as many bytes
  /// as `taken` says. No piece of any rank is longer than `longest` bytes.
  void move(const fingerprint& print, std::size_t pieces, std::size_t place, std::size_t longest) const {
    if (size() == 1) return copy(taken()[0].first, sent()[place].first, taken()[0].bytes);
    rounds(print, pieces, place, longest, [&](std::size_t first, std::size_t most, const std::byte* slot_memory) {
      for (std::size_t q = 0; q < taken().size(); ++q)
        if (const std::size_t bytes = part_of(taken()[q], first, most); bytes > 0)
          copy(taken()[q].first + first, slot_memory + q * stride(), bytes);
    });
  }
  /// The work on bytes [first, first + bytes) of a piece: rank q has them at `slot_memory + q x stride`.
  using reduction =
      function_ref<void(std::size_t first, std::size_t bytes, const std::byte* slot_memory, std::size_t stride)>;
  /// Puts the first `pieces` of `sent` where peers see them; `reduce` makes `out` of the piece number `place` of all
  /// ranks. No piece of any rank is longer than `longest` bytes.
  void reduce(const fingerprint& print, std::size_t pieces, std::size_t place, std::size_t longest, piece out,
              reduction reduce) const {
    if (size() == 1) return copy(out.first, sent()[place].first, out.bytes);
    rounds(print, pieces, place, longest, [&](std::size_t first, std::size_t most, const std::byte* slot_memory) {
      if (const std::size_t bytes = part_of(out, first, most); bytes > 0) reduce(first, bytes, slot_memory, stride());
    });
  }

 private:
  template <class Take>
  void rounds(const fingerprint& print, std::size_t pieces, std::size_t place, std::size_t longest,
              const Take& take) const {
    shared_group<Api>& shared = member_->shared();
    const std::size_t room = shared.slot_bytes() / pieces / 16 * 16;
    std::size_t first = 0;
    do {
      const std::size_t turn = member_->turn();
      if (!member_->first_use_of_slot())
        for (int q = 0; q < size(); ++q) wait(shared.emptied(turn, static_cast<std::size_t>(q)));
      for (std::size_t k = 0; k < pieces; ++k)
        if (const std::size_t bytes = part_of(sent()[k], first, room); bytes > 0)
          copy(shared.slot(turn, rank()) + k * room, sent()[k].first + first, bytes);
      record(shared.filled(turn, rank()));
      meet(print);
      if (first == 0) longest = greater_of(longest, compare_counts(print));
      for (int q = 0; q < size(); ++q)
        if (static_cast<std::size_t>(q) != rank()) wait(shared.filled(turn, static_cast<std::size_t>(q)));
      take(first, room, shared.slot(turn, 0) + place * room);
      record(shared.emptied(turn, rank()));
      member_->end_round();
      first += room;
    } while (first < longest);
  }
  // Tells the others what this rank calls, waits for them, and compares.
  void meet(const fingerprint& print) const {
    auto& mine = member_->call_of(static_cast<int>(rank()));
    mine.print = print;
    mine.at = at_;
    calls_->barrier(at_);
    expect_alike(
        *member_, [&](int a, int b) { return member_->call_of(a).print == member_->call_of(b).print; },
        [&](int q) { return member_->call_text(q); });
  }
  // In the first round. Gives the longest piece of an operation in which ranks know their own alone.
  [[nodiscard]] std::size_t compare_counts(const fingerprint& print) const {
    if (print.shape != 0) expect_same_counts(*member_);
    if (print.what != operation::all_to_all_v) return 0;
    expect_equal_pairs(*member_);
    std::size_t most = 0;
    for (int q = 0; q < size(); ++q)
      for (const std::size_t count : member_->send_counts_of(q)) most = greater_of(most, count);
    return most * print.type.bytes;
  }

  void copy(std::byte* to, const std::byte* from, std::size_t bytes) const {
    if (to != from) stream_->copy(to, from, bytes, at_);
  }
  // How much of a piece is in the round of bytes [first, first + most).
  [[nodiscard]] static std::size_t part_of(const piece& whole, std::size_t first, std::size_t most) noexcept {
    return whole.bytes <= first ? 0 : lesser_of(most, whole.bytes - first);
  }
  [[nodiscard]] std::size_t stride() const noexcept { return member_->shared().slot_bytes(); }
  void record(typename Api::event_type event) const {
    stream_->expect(stream_->api().record(event, stream_->handle()), "record", 0, at_);
  }
  void wait(typename Api::event_type event) const {
    stream_->expect(stream_->api().wait(stream_->handle(), event), "wait", 0, at_);
  }

  group_member<Api, ControlRank>* member_;
  cuda::stream<Api>* stream_;
  const Calls* calls_;
  where at_;
};

}  // namespace belay::inline BELAY_ABI::cuda
