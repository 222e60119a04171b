// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Bytes in a file of tier file that go to memory and come from it through a ring of slots, on the stream of copies:
// from any byte on, as many as there are. A slot is filled again when its transfer is over; so what is written waits
// for the medium where that is slow, and nothing grows. Reads are started before what they bring is asked for.
//
//   belay::streamed_file file({"/scratch"}, bytes, sizes, ring);
//   file.write(copies, 0, values, count);   // is in a slot, or written, when the stream is there
//   file.read(copies, values, 0, count);    // comes after what was written before
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "belay/core/bounds.hpp"
#include "belay/core/config.hpp"
#include "belay/core/where.hpp"
#include "belay/device/host_access.hpp"
#include "belay/device/slot_ring.hpp"
#include "belay/device/tier_file.hpp"

namespace belay::inline BELAY_ABI {

/// A file behind a ring of slots; what a stream has queued points to it. Everything but `read` and `write`, which
/// queue, is of one thread at a time: the one that runs the stream of copies or, when nothing is queued there, the
/// host's. It throws tier_file_error for what could not be read, and for what could not be written at the next use of
/// its slot, or in `settle`.
template <tier_file_calls Files = system_tier_file_calls>
class streamed_file {
 public:
  /// A file of `bytes`, 1 or more; `ring` has `sizes.ring_bytes(bytes)` and outlives it. Throws tier_file_error where
  /// it cannot be made.
  streamed_file(const file_memory& where_it_is, std::size_t bytes, const streamed_layout& sizes,
                std::span<std::byte> ring, where at = where::current());

  /// Memory that is read into and written from lies on the device of `access`, which addresses the ring too; null: on
  /// the host. Pieces lie in the ring.
  void set_host_view(const host_access* access) noexcept { access_ = access; }

  /// Queues on the stream of copies: `bytes` bytes from byte `first` of the file on come to `to`.
  template <class Copies>
  void read(Copies& copies, void* to, std::uint64_t first, std::size_t bytes, where at = where::current()) {
    copies.run([this, to, first, bytes, at] { read_now(to, first, bytes, at); });
  }
  /// The other way round; `from` is free when the stream is there.
  template <class Copies>
  void write(Copies& copies, std::uint64_t first, const void* from, std::size_t bytes, where at = where::current()) {
    copies.run([this, first, from, bytes, at] {
      begin_write(first, bytes, at);
      put(first, from, bytes);
      end_write();
    });
  }

  /// Reads before it returns. Throws tier_file_error.
  void read_now(void* to, std::uint64_t first, std::size_t bytes, where at) {
    begin_read(first, bytes, at);
    get(to, first, bytes);
  }

  /// Begins to read a range: `get` takes parts of it, in order.
  void begin_read(std::uint64_t first, std::size_t bytes, where at);
  void get(void* to, std::uint64_t first, std::size_t bytes);
  /// Calls `visit(bytes before it, piece, bytes)` for the pieces of a part, in order, where they are in the ring:
  /// nothing is copied.
  template <class Visit>
  void get_pieces(std::uint64_t first, std::size_t bytes, Visit&& visit) {
    for (std::size_t done = 0; done < bytes;) {
      while (first >= taken_.last) take_piece();
      const std::size_t count = lesser_of<std::uint64_t>(bytes - done, taken_.last - first);
      visit(done, taken_slot_ + (first - taken_.first), count);
      done += count, first += count;
    }
  }

  /// Begins to write a range: `put` gives parts of it, in order; what lies in blocks around it stays. `end_write` has
  /// all of it under way.
  void begin_write(std::uint64_t first, std::size_t bytes, where at) {
    at_ = at;
    writing_ = {first, first + bytes};
    filled_ = {down(first), down(first)};
  }
  void put(std::uint64_t first, const void* from, std::size_t bytes);
  void end_write();

  /// Calls `visit(first, std::span<std::byte>)` for the bytes of a range, piece by piece, and writes what it leaves.
  template <class Visit>
  void change(std::uint64_t first, std::size_t bytes, Visit&& visit, where at) {
    settle(at);
    const byte_range all{first, first + bytes};
    for (std::uint64_t begin = down(first); bytes > 0 && begin < all.last; begin += ring_.slot_bytes()) {
      const std::uint64_t end = lesser_of<std::uint64_t>(begin + ring_.slot_bytes(), up(all.last));
      const std::span<std::byte> piece = ring_.slot(0).first(static_cast<std::size_t>(end - begin));
      file_.start_read(begin, piece, at).wait(at);
      const std::uint64_t from = greater_of(begin, all.first), to = lesser_of(end, all.last);
      visit(static_cast<std::size_t>(from - first),
            piece.subspan(static_cast<std::size_t>(from - begin), static_cast<std::size_t>(to - from)));
      file_.start_write(begin, piece, at).wait(at);
    }
  }

  /// Returns when nothing is under way.
  void settle(where at);

  /// Returns when nothing is under way; failures are forgotten.
  void abandon() noexcept;

  /// The file below it.
  [[nodiscard]] const tier_file<Files>& file() const noexcept { return file_; }

 private:
  struct byte_range {
    std::uint64_t first = 0, last = 0;
  };
  struct transfer {
    file_transfer moves;
    byte_range writes = {};  // of the file, where it is a write that was not waited for
  };

  void copy(std::byte* to, const std::byte* from, std::size_t bytes) const {
    access_ != nullptr ? access_->copy(to, from, bytes, at_) : void(std::memcpy(to, from, bytes));
  }
  [[nodiscard]] std::uint64_t down(std::uint64_t byte) const noexcept { return byte / alignment_ * alignment_; }
  [[nodiscard]] std::uint64_t up(std::uint64_t byte) const noexcept { return down(byte + alignment_ - 1); }
  [[nodiscard]] std::size_t next_slot() noexcept { return turn_++ % ring_.slot_count(); }

  void await_writes(byte_range in);
  // The slot is empty from here on.
  void await_slot(std::size_t number);

  void start_read();
  void take_piece();

  void next_piece();
  void read_block(std::uint64_t first);
  void write_piece();

  std::size_t alignment_;
  const host_access* access_ = nullptr;
  slot_ring ring_;
  std::vector<transfer> under_way_;  // by slot
  std::uint64_t turn_ = 0;           // of the slot that is filled next
  byte_range reading_, taken_;       // what is read, and the piece of it that `get` has come to
  std::uint64_t started_ = 0, taken_turn_ = 0;
  const std::byte* taken_slot_ = nullptr;
  byte_range writing_, filled_;  // what is written, and the piece of it that `put` fills
  std::size_t filled_slot_ = 0;
  where at_;
  tier_file<Files> file_;  // last: transfers end before the ring's slots are anyone else's
};

template <tier_file_calls Files>
streamed_file<Files>::streamed_file(const file_memory& where_it_is, std::size_t bytes, const streamed_layout& sizes,
                                    std::span<std::byte> ring, where at)
    : alignment_(sizes.alignment()),
      under_way_(sizes.slot_count(bytes)),
      file_(where_it_is.folder, sizes.file_bytes(bytes), sizes.slot_count(bytes), where_it_is.access, at) {
  const std::size_t slot_count = sizes.slot_count(bytes), all = slot_count * sizes.slot_bytes(bytes);
  void* first = ring.data();
  std::size_t room = ring.size();
  first = std::align(alignment_, all, first, room);
  ring_ = slot_ring({static_cast<std::byte*>(first), all}, slot_count, alignment_);
}

template <tier_file_calls Files>
void streamed_file<Files>::begin_read(std::uint64_t first, std::size_t bytes, where at) {
  at_ = at;
  reading_ = {down(first), bytes == 0 ? down(first) : up(first + bytes)};
  await_writes(reading_);
  started_ = taken_.first = taken_.last = reading_.first;
  taken_turn_ = turn_;
  for (std::size_t i = 0; i < ring_.slot_count(); ++i) start_read();
}

template <tier_file_calls Files>
void streamed_file<Files>::get(void* to, std::uint64_t first, std::size_t bytes) {
  get_pieces(first, bytes, [this, to](std::size_t done, const std::byte* piece, std::size_t count) {
    copy(static_cast<std::byte*>(to) + done, piece, count);
  });
}

template <tier_file_calls Files>
void streamed_file<Files>::put(std::uint64_t first, const void* from, std::size_t bytes) {
  for (auto* byte = static_cast<const std::byte*>(from); bytes > 0;) {
    while (first >= filled_.last) next_piece();
    const std::size_t count = lesser_of<std::uint64_t>(bytes, filled_.last - first);
    copy(ring_.slot(filled_slot_).data() + (first - filled_.first), byte, count);
    byte += count, first += count, bytes -= count;
  }
}

template <tier_file_calls Files>
void streamed_file<Files>::end_write() {
  while (filled_.last < writing_.last) next_piece();
  write_piece();
  filled_ = {};
}

template <tier_file_calls Files>
void streamed_file<Files>::settle(where at) {
  for (transfer& each : under_way_) {
    each.writes = {};
    each.moves.wait(at);
  }
}

template <tier_file_calls Files>
void streamed_file<Files>::abandon() noexcept {
  for (transfer& each : under_way_) each = {};
}

template <tier_file_calls Files>
void streamed_file<Files>::await_writes(byte_range in) {
  for (transfer& each : under_way_) {
    if (each.writes.first >= in.last || each.writes.last <= in.first) continue;
    each.writes = {};
    each.moves.wait(at_);
  }
}

template <tier_file_calls Files>
void streamed_file<Files>::await_slot(std::size_t number) {
  transfer& before = under_way_[number];
  before.writes = {};
  before.moves.wait(at_);
}

template <tier_file_calls Files>
void streamed_file<Files>::start_read() {
  if (started_ >= reading_.last) return;
  const std::size_t slot = next_slot();
  await_slot(slot);
  const std::uint64_t count = lesser_of<std::uint64_t>(ring_.slot_bytes(), reading_.last - started_);
  under_way_[slot].moves = file_.start_read(started_, ring_.slot(slot).first(static_cast<std::size_t>(count)), at_);
  started_ += count;
}

template <tier_file_calls Files>
void streamed_file<Files>::take_piece() {
  if (taken_.last > reading_.first) start_read();  // into the slot that was taken before
  const std::size_t slot = taken_turn_++ % ring_.slot_count();
  under_way_[slot].moves.wait(at_);
  taken_ = {taken_.last, lesser_of<std::uint64_t>(taken_.last + ring_.slot_bytes(), reading_.last)};
  taken_slot_ = ring_.slot(slot).data();
}

template <tier_file_calls Files>
void streamed_file<Files>::next_piece() {
  write_piece();
  filled_ = {filled_.last, lesser_of<std::uint64_t>(filled_.last + ring_.slot_bytes(), up(writing_.last))};
  filled_slot_ = next_slot();
  await_slot(filled_slot_);
  // Bytes beside the range in its first and in its last block stay as they are.
  const std::uint64_t tail = down(writing_.last);
  const bool begins_inside = filled_.first < writing_.first;
  if (begins_inside) read_block(filled_.first);
  if (tail != writing_.last && tail >= filled_.first && tail < filled_.last &&
      !(begins_inside && tail == filled_.first))
    read_block(tail);
}

template <tier_file_calls Files>
void streamed_file<Files>::read_block(std::uint64_t first) {
  await_writes({first, first + alignment_});
  file_
      .start_read(first, ring_.slot(filled_slot_).subspan(static_cast<std::size_t>(first - filled_.first), alignment_),
                  at_)
      .wait(at_);
}

template <tier_file_calls Files>
void streamed_file<Files>::write_piece() {
  if (filled_.first == filled_.last) return;
  await_writes(filled_);  // two at once would be in no order
  transfer& to = under_way_[filled_slot_];
  to.writes = filled_;
  to.moves = file_.start_write(
      filled_.first, ring_.slot(filled_slot_).first(static_cast<std::size_t>(filled_.last - filled_.first)), at_);
}

}  // namespace belay::inline BELAY_ABI
