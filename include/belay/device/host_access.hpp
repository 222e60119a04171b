// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// How the host sees memory that it does not address: piece by piece, through memory that the device copies to and from.
// Who writes files, or fills parameters from them, comes by here; an engine of a device has one, one of the host none.
// And numbers of a step that the host gives to kernels there.
//
//   if (const belay::host_access* access = engine.access())
//     access->change(values, [&](std::size_t first, std::span<float> piece) { ... });
//
//   belay::device_numbers<float, Memory> scale(engine.activations().memory());
//   scale.write(kit.stream(), 0.5F);
//   kit.each(n, belay::kernel::scale_from<float>{scale.get(), x});
#pragma once

#include <cstddef>
#include <cstring>
#include <mutex>
#include <span>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "belay/core/bounds.hpp"
#include "belay/core/config.hpp"
#include "belay/core/where.hpp"
#include "belay/device/memory.hpp"
#include "belay/device/offset_allocator.hpp"
#include "belay/device/stream.hpp"
#include "belay/device/stream_event.hpp"

namespace belay::inline BELAY_ABI {

/// Copies of any size between a device and any memory of the host, through memory that the device copies to and from:
/// while it copies one half of that, the host fills or empties the other. By one thread at a time, in the order of one
/// stream, which ends before.
template <memory_region Memory>
class staged_copies {
 public:
  /// Through `memory`, of two bytes or more.
  explicit staged_copies(Memory memory) : memory_(std::move(memory)) {}

  /// Each returns when its copies are over. `queue(to, from, bytes)` queues a copy in the order of the stream and gives
  /// the event behind it. Throw what the device has failed with; then a copy may still be on its way, which the next
  /// call waits for.
  template <class Queue>
  void fetch(void* to, const void* from, std::size_t bytes, const Queue& queue, where at) {
    const auto begin = [&](std::size_t done, std::size_t turn) {
      if (done < bytes)
        over_[turn] = queue(half(turn), static_cast<const std::byte*>(from) + done, part_of(bytes, done));
    };
    begin(0, 0);
    for (std::size_t done = 0, turn = 0; done < bytes; done += half_bytes(), turn = 1 - turn) {
      begin(done + half_bytes(), 1 - turn);
      over_[turn].synchronize(at);
      std::memcpy(static_cast<std::byte*>(to) + done, half(turn), part_of(bytes, done));
    }
  }
  template <class Queue>
  void place(void* to, const void* from, std::size_t bytes, const Queue& queue, where at) {
    std::size_t turn = 0;
    for (std::size_t done = 0; done < bytes; done += half_bytes(), turn = 1 - turn) {
      over_[turn].synchronize(at);
      std::memcpy(half(turn), static_cast<const std::byte*>(from) + done, part_of(bytes, done));
      over_[turn] = queue(static_cast<std::byte*>(to) + done, half(turn), part_of(bytes, done));
    }
    over_[1 - turn].synchronize(at);  // the last, behind all others
  }

 private:
  [[nodiscard]] std::size_t half_bytes() const noexcept { return memory_.size_bytes() / 2; }
  [[nodiscard]] std::byte* half(std::size_t turn) const noexcept { return memory_.data() + turn * half_bytes(); }
  [[nodiscard]] std::size_t part_of(std::size_t bytes, std::size_t done) const noexcept {
    return lesser_of(half_bytes(), bytes - done);
  }

  Memory memory_;
  stream_event over_[2];  // of the copy that has used a half last
};

/// Any thread calls it, and every call returns when its copies are over. What the memory holds is not ordered with what
/// other streams have queued: that is over before.
class host_access {
 public:
  /// Elements of a piece are at most so many bytes.
  static constexpr std::size_t piece_bytes = std::size_t{4} << 20U;

  /// Copies between two places that the device addresses. Throws what the device has failed with.
  virtual void copy(void* to, const void* from, std::size_t bytes, where at) const = 0;
  /// Copies to any memory of the host, and from it.
  virtual void fetch(void* to, const void* from, std::size_t bytes, where at) const = 0;
  virtual void place(void* to, const void* from, std::size_t bytes, where at) const = 0;

  /// Calls `visit(first, std::span<T>)` for the elements of `all`, piece by piece, and puts back what it leaves.
  template <class T, class Visit>
  void change(std::span<T> all, Visit&& visit, where at = where::current()) const {
    std::vector<T> seen(lesser_of(all.size(), piece_bytes / sizeof(T)));
    for (std::size_t first = 0; first < all.size(); first += seen.size()) {
      const std::span<T> piece(seen.data(), lesser_of(seen.size(), all.size() - first));
      fetch(piece.data(), all.data() + first, piece.size_bytes(), at);
      visit(first, piece);
      place(all.data() + first, piece.data(), piece.size_bytes(), at);
    }
  }

 protected:
  ~host_access() = default;
};

/// By a stream of its own. `Pinned` is memory of the host that the device copies to and from.
template <stream Stream, memory_region Pinned>
class device_access final : public host_access {
 public:
  /// `staged` is what passes between the device and any memory of the host.
  device_access(Stream stream, Pinned staged) : staged_(std::move(staged)), stream_(std::move(stream)) {}

  void copy(void* to, const void* from, std::size_t bytes, where at) const override {
    queue_for_any_thread(to, from, bytes, at).synchronize(at);
  }
  void fetch(void* to, const void* from, std::size_t bytes, where at) const override {
    const std::lock_guard alone(staging_);
    staged_.fetch(to, from, bytes, queue_at(at), at);
  }
  void place(void* to, const void* from, std::size_t bytes, where at) const override {
    const std::lock_guard alone(staging_);
    staged_.place(to, from, bytes, queue_at(at), at);
  }

 private:
  [[nodiscard]] stream_event queue_for_any_thread(void* to, const void* from, std::size_t bytes, where at) const {
    if constexpr (requires(Stream & each) { each.open_device(at); })  // a thread that writes a file has none yet
      if (std::this_thread::get_id() != maker_) stream_.open_device(at);
    const std::lock_guard alone(queueing_);
    stream_.copy(to, from, bytes, at);
    return stream_.record(at);
  }
  [[nodiscard]] auto queue_at(where at) const {
    return
        [this, at](void* to, const void* from, std::size_t bytes) { return queue_for_any_thread(to, from, bytes, at); };
  }

  mutable std::mutex queueing_, staging_;
  mutable staged_copies<Pinned> staged_;
  mutable Stream stream_;  // ends before the memory of its copies
  std::thread::id maker_ = std::this_thread::get_id();
};

/// Numbers of a step that kernels read in the memory of the device: a plain struct, which the host writes in the order
/// of a stream before each use. So what is queued has their address alone, and may be captured once and launched often.
/// Stays where it is, and outlives what is queued.
template <class T, device_region Memory>
class device_numbers {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  /// In memory of the device that `memory` is in, and of the host that is copied from. Throws where there is no room.
  explicit device_numbers(const Memory& memory, where at = where::current())
      : memory_(memory.allocate(bytes, at)), staged_(memory.allocate_host(bytes, at)) {}
  device_numbers(const device_numbers&) = delete;  // kernels point to it
  device_numbers& operator=(const device_numbers&) = delete;

  /// Of the device, for kernels.
  [[nodiscard]] const T* get() const noexcept { return reinterpret_cast<const T*>(memory_.data()); }
  /// Later work of `stream` finds `value`; earlier work of it what there was. The host waits where the copy before is
  /// not over. Not in a capture.
  template <stream Stream>
  void write(Stream& stream, const T& value, where at = where::current()) {
    copied_.synchronize(at);
    std::memcpy(staged_.data(), &value, sizeof value);
    queue_copy(stream, memory_.data(), staged_.data(), sizeof value);
    copied_ = stream.record();
  }

 private:
  static constexpr std::size_t bytes = leased_size(sizeof(T));

  Memory memory_;
  decltype(std::declval<const Memory&>().allocate_host(0, where{})) staged_;
  stream_event copied_;
};

/// A number in the memory of a device, where that is one; elsewhere none.
template <class T, class Memory>
struct numbers_in {
  struct type {};
};
template <class T, device_region Memory>
struct numbers_in<T, Memory> {
  using type = device_numbers<T, Memory>;
};

}  // namespace belay::inline BELAY_ABI
