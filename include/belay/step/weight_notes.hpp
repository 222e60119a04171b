// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A backward in two halves notes what it would add to gradients, and adds it later. A note names the parameter and the
// memory that its work reads: the leases of that memory are held until the work is queued, so that nothing else of the
// call needs to live on. Notes read no parameter's values. They lie in a pool of the engine, which a rehearsal sizes.
// IWYU pragma: private, include "belay/step.hpp"
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <new>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "belay/core/bounds.hpp"
#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/hash.hpp"
#include "belay/core/operand.hpp"
#include "belay/core/printable.hpp"
#include "belay/core/view.hpp"
#include "belay/core/where.hpp"
#include "belay/device/offset_allocator.hpp"

namespace belay::inline BELAY_ABI {

/// A lease of whichever memory that is held beside its chain; null: of memory that is no step's.
struct held_lease {
  /// Lets go of the lease of `owner`.
  void (*drop)(void* owner, offset_allocator::lease_number lease) noexcept = nullptr;
  void* owner = nullptr;
  offset_allocator::lease_number lease = 0;

  void let_go() noexcept {
    if (drop != nullptr) drop(owner, lease);
    drop = nullptr;
  }
  /// Of an arena or a heap, which has `hold` and `let_go`.
  template <class Leases>
  [[nodiscard]] static held_lease of(Leases& owner, const void* address) noexcept {
    const auto found = owner.hold(address);
    if (!found) return {};
    return {[](void* from, offset_allocator::lease_number one) noexcept { static_cast<Leases*>(from)->let_go(one); },
            &owner, *found};
  }
};

/// Memory that noted work reads: rows of `row_bytes`, every `stride_bytes`.
struct noted_bytes {
  /// The first byte, and the rows.
  const std::byte* first = nullptr;
  std::size_t rows = 0;
  std::size_t row_bytes = 0;
  std::size_t stride_bytes = 0;

  template <class T>
  [[nodiscard]] static noted_bytes of(const operand<T>& what) noexcept {
    return {reinterpret_cast<const std::byte*>(what.data), what.rows, what.columns * sizeof(T),
            what.stride * sizeof(T)};
  }
  template <class T, std::size_t Rank>
  [[nodiscard]] static noted_bytes of(const view<T, Rank>& what) noexcept {
    return {reinterpret_cast<const std::byte*>(what.data()), 1, what.size_bytes(), what.size_bytes()};
  }
  [[nodiscard]] std::size_t bytes() const noexcept { return rows * row_bytes; }

  /// A hash of some words of many rows, or, in builds that check across ranks, of all.
  [[nodiscard]] std::uint64_t fingerprint() const noexcept {
    constexpr bool whole = checked(check_level::across_ranks);
    constexpr std::size_t looked_at = 64, piece = 16;
    content_hash hash;
    const std::size_t step = whole ? 1 : greater_of(rows / looked_at, std::size_t{1});
    for (std::size_t row = 0; row < rows; row += step) {
      const std::byte* const at = first + row * stride_bytes;
      if (whole || row_bytes <= looked_at * piece) {
        hash.add_bytes(at, row_bytes);
        continue;
      }
      const std::size_t pieces = row_bytes / piece, every = greater_of(pieces / looked_at, std::size_t{1});
      for (std::size_t i = 0; i < pieces; i += every) hash.add_bytes(at + i * piece, piece);
    }
    return hash.value();
  }
};

/// One addition to the gradient of a parameter that was noted.
struct weight_note {
  static constexpr std::size_t work_bytes = 320;
  static constexpr std::size_t most_operands = 6;

  /// Memory that the work reads, and how it is held.
  struct read_memory {
    noted_bytes bytes;
    held_lease held;
  };

  /// The next note of the list, and what adds: `run(frame, note)`, which lists the parameter too.
  weight_note* next = nullptr;
  void (*run)(void* frame, weight_note& note) = nullptr;
  void* parameter = nullptr;
  std::string_view parameter_name;
  std::array<read_memory, most_operands> reads{};
  std::uint32_t read_count = 0;
  bool adds = false;  // else the parameter is listed alone
  /// A hash of what it reads, in the order of the stream, which alone touches it. Of checked builds.
  std::uint64_t fingerprint = 0;
  alignas(std::max_align_t) std::array<std::byte, work_bytes> work;

  [[nodiscard]] std::size_t bytes() const noexcept {
    std::size_t all = 0;
    for (std::uint32_t i = 0; i < read_count; ++i) all += reads[i].bytes.bytes();
    return all;
  }
};

/// Work of a stream: what a note reads is taken down.
struct noted_fingerprint {
  std::array<noted_bytes, weight_note::most_operands> reads{};
  std::uint32_t count;
  std::uint64_t* found;

  noted_fingerprint(const weight_note& of, std::uint64_t* into) noexcept : count(of.read_count), found(into) {
    for (std::uint32_t i = 0; i < count; ++i) reads[i] = of.reads[i].bytes;
  }
  [[nodiscard]] std::uint64_t now() const noexcept {
    content_hash all;
    for (std::uint32_t i = 0; i < count; ++i) all.add(reads[i].fingerprint());
    return all.value();
  }
  void operator()() const noexcept { *found = now(); }
};
/// Work of a stream: throws the usage_error of memory that was written since it was noted.
struct expected_fingerprint {
  noted_fingerprint noted;
  std::string_view parameter;

  void operator()() const {
    if (noted.now() != *noted.found) [[unlikely]]
      refuse(parameter);
  }
  [[noreturn, gnu::cold]] static void refuse(std::string_view parameter) {
    throw usage_error("what the weight half adds to parameter " + printable(std::string(parameter)) +
                          " was overwritten after the input half had noted it: a layer that writes such memory again "
                          "asks frame.notes_additions(), and takes other memory",
                      where{});
  }
};

/// The notes of all calls whose weight half is still to come. A run gives it memory for as many as its rehearsal had at
/// a time; without that it grows.
class weight_note_pool {
 public:
  weight_note_pool() = default;
  weight_note_pool(const weight_note_pool&) = delete;
  weight_note_pool& operator=(const weight_note_pool&) = delete;

  /// Bytes for so many notes at a time, and where they are from now on, before any was taken. They outlive the pool.
  [[nodiscard]] static constexpr std::size_t bytes_of(std::size_t count) noexcept {
    return count * sizeof(weight_note);
  }
  void use(std::span<std::byte> memory) noexcept {
    for (std::size_t at = 0; at + sizeof(weight_note) <= memory.size(); at += sizeof(weight_note))
      add_free(*::new (static_cast<void*>(memory.data() + at)) weight_note);
    own_ = memory;
  }
  [[nodiscard]] weight_note& take() {
    if (free_ == nullptr) add_free(more_.emplace_back());
    weight_note& taken = *free_;
    free_ = std::exchange(taken.next, nullptr);
    taken.read_count = 0;
    taken.adds = false;
    if (++used_ > peak_) peak_ = used_;
    return taken;
  }
  void give_back(weight_note& note) noexcept {
    note.next = free_;
    free_ = &note;
    --used_;
  }
  /// The step has ended, and its leases with it: all notes are free.
  void clear() noexcept {
    most_at_once_ = greater_of(most_at_once_, std::exchange(at_once_, std::size_t{0}));
    if (used_ == 0) return;
    used_ = 0;
    free_ = nullptr;
    for (weight_note& each : more_) add_free(each);
    use(own_);
  }
  /// How many there are now, and the most that there were at a time.
  [[nodiscard]] std::size_t used() const noexcept { return used_; }
  [[nodiscard]] std::size_t peak() const noexcept { return peak_; }

  /// A call has added in its first half, because it has asked for a gradient's memory; how many have, in the step of
  /// most of them that has ended.
  void note_added_at_once() noexcept { ++at_once_; }
  [[nodiscard]] std::size_t added_at_once() const noexcept { return most_at_once_; }

 private:
  void add_free(weight_note& note) noexcept { note.next = std::exchange(free_, &note); }

  std::span<std::byte> own_;
  std::deque<weight_note> more_;  // they stay where they are
  weight_note* free_ = nullptr;
  std::size_t used_ = 0;
  std::size_t peak_ = 0;
  std::size_t at_once_ = 0;
  std::size_t most_at_once_ = 0;
};

/// The notes of one call, in the order in which they were made. They are given back by whoever runs them, or with the
/// step.
class weight_note_list {
 public:
  weight_note_list() = default;
  weight_note_list(weight_note_list&& other) noexcept
      : first_(std::exchange(other.first_, nullptr)), last_(std::exchange(other.last_, nullptr)) {}
  weight_note_list& operator=(weight_note_list&&) = delete;
  ~weight_note_list() = default;

  [[nodiscard]] bool empty() const noexcept { return first_ == nullptr; }
  [[nodiscard]] weight_note& append(weight_note_pool& from) {
    weight_note& added = from.take();
    (last_ == nullptr ? first_ : last_->next) = &added;
    last_ = &added;
    return added;
  }
  [[nodiscard]] bool ends_with(const weight_note& note) const noexcept { return last_ == &note; }
  /// Bytes that the notes read, and so what is held for them at most.
  [[nodiscard]] std::size_t bytes() const noexcept {
    std::size_t all = 0;
    for (const weight_note* each = first_; each != nullptr; each = each->next) all += each->bytes();
    return all;
  }
  /// Calls `run(note)` for each in order, and empties the list.
  template <class Run>
  void consume(weight_note_pool& pool, const Run& run) {
    while (first_ != nullptr) {
      weight_note& one = *first_;
      run(one);
      first_ = one.next;
      for (std::uint32_t i = 0; i < one.read_count; ++i) one.reads[i].held.let_go();
      pool.give_back(one);
    }
    last_ = nullptr;
  }
  /// Lets go of all that is held, and runs nothing.
  void drop(weight_note_pool& pool) noexcept {
    consume(pool, [](weight_note&) {});
  }
  /// Takes over the notes of another list; this one is empty.
  void take(weight_note_list& from) noexcept {
    first_ = std::exchange(from.first_, nullptr);
    last_ = std::exchange(from.last_, nullptr);
  }
  /// Its step has ended, which has reclaimed everything.
  void forget() noexcept { first_ = last_ = nullptr; }

 private:
  weight_note* first_ = nullptr;
  weight_note* last_ = nullptr;
};

/// A backward's notes while its input half runs. `closed`: something has added without a note, so that the rest of the
/// call adds at once, too.
struct weight_noting {
  weight_note_list notes;
  bool closed = false;
};

}  // namespace belay::inline BELAY_ABI
