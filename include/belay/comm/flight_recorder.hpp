// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The flight recorder of a rank: a ring of its last operations. An error can say what a missing peer was doing, and a
// dead rank's history outlives it. One thread writes; any other, of any process that maps the memory, may read at any
// time. Each entry holds its position, which a reader loads before and after the rest, so that words of different
// operations are not taken for one. Call sites are kept as text, once each, because a pointer means nothing to another
// process. No clock is read: an operation that does not wait must not pay for one.
// IWYU pragma: private, include "belay/comm.hpp"
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "belay/comm/abort_cause.hpp"
#include "belay/comm/fingerprint.hpp"
#include "belay/comm/start_order.hpp"
#include "belay/core/config.hpp"
#include "belay/core/where.hpp"

namespace belay::inline BELAY_ABI {

/// The record of one operation: `number` counts the operations of its group from 0; `group` is the group's number.
struct flight_record {
  operation what = operation::none;
  bool finished = false;
  std::uint32_t group = 0;
  std::uint64_t number = 0;
  std::size_t bytes = 0;
  std::uint64_t waited_us = 0;   // finished: how long it slept, 0 where it did not
  std::uint64_t waiting_us = 0;  // not finished: since when it sleeps, by the world's clock; 0 where it does not
  std::string site;              // "train.cpp:88"
  bool reported = false;         // known by a control message of the rank alone: it has entered, and may be through

  /// "in barrier #3 at train.cpp:88", "after barrier #3 of group 2 at train.cpp:88", "last seen in barrier #3 at
  /// train.cpp:88" where it is `reported`, "before its first operation"; group 0 is the world.
  [[nodiscard]] std::string text() const;
};

/// The state of a rank in words, by its last records of two orders of operations: "after barrier #2 at a.cpp:8, and in
/// started barrier #0 at a.cpp:9" where it does nothing in the order that is asked for, and something in the other.
[[nodiscard]] BELAY_DECL std::string text_of(const flight_record& here, const flight_record& aside,
                                             const char* kind_aside);

/// "train.cpp:88" as it is kept: the end of a long path, which is what tells files apart. A line of an object that the
/// standard library made for the user is said to be one.
struct call_line {
  char characters[112] = {};

  void set(const char* file, int line) noexcept;
  [[nodiscard]] std::string get() const;
};

/// The text of the call sites of one rank: each is written once, by that rank, and never changes.
template <std::size_t Capacity = 512>
class site_table {
  static_assert((Capacity & (Capacity - 1)) == 0, "a site table's capacity is a power of two");

 public:
  static constexpr std::uint16_t unknown = 0xffff;

  /// The number of a site; `unknown` when more sites than are kept want the same places.
  [[nodiscard]] std::uint16_t number_of(const char* file, int line) noexcept {
    const auto address = reinterpret_cast<std::uintptr_t>(file);
    std::size_t place = (static_cast<std::size_t>(line) * 0x9e3779b1U ^ (address >> 4)) & (Capacity - 1);
    for (int attempt = 0; attempt < 16; ++attempt, place = (place + 1) & (Capacity - 1)) {
      site& here = sites_[place];
      if (here.line == line && here.file == address) return static_cast<std::uint16_t>(place);
      if (here.file == 0) {
        here.text.set(file, line);
        here.file = address;
        here.line = line;
        return static_cast<std::uint16_t>(place);
      }
    }
    return unknown;
  }

  /// "train.cpp:88"; only for a number that was published after it was given, and none is unknown.
  [[nodiscard]] std::string text(std::uint16_t number) const { return sites_[number % Capacity].text.get(); }

 private:
  struct site {
    std::uintptr_t file = 0;  // the key; an address of the process that writes
    int line = 0;
    call_line text;
  };

  std::array<site, Capacity> sites_{};
};

/// The site called last of those for which the table has no room: overwritten by the next one.
class latest_site {
 public:
  /// The writer: from operation `position` on, counted from 1.
  void set(std::uint64_t position, const char* file, int line) noexcept;
  /// The site of operation `position`, if it is the one kept.
  [[nodiscard]] std::string of(std::uint64_t position) const;

 private:
  static constexpr std::size_t words = sizeof(call_line) / sizeof(std::uint64_t);

  std::atomic<std::uint64_t> since_{0};  // 0: none, or being written
  std::array<std::atomic<std::uint64_t>, words> text_{};
};

template <std::size_t Capacity = 4096>
class flight_recorder {
 public:
  void enter(operation what, std::uint32_t group, std::uint64_t number, std::size_t bytes, const char* file,
             int line) noexcept {
    const std::uint64_t position = written_.load(std::memory_order_relaxed);
    if (file != last_file_ || line != last_line_) remember_site(file, line);
    open_ = &ring_[position % Capacity];
    // The word with the position is first, and each is stored before the next: a reader in the meantime finds out.
    open_->what.store(
        stamp_of(position) | std::uint64_t{group & 0xffffff} << 24 | last_site_ << 8 | static_cast<std::uint64_t>(what),
        std::memory_order_release);
    open_->number.store(number, std::memory_order_release);
    open_->bytes.store(bytes, std::memory_order_release);
    open_->end.store(0, std::memory_order_release);
    written_.store(position + 1, std::memory_order_release);
    __builtin_prefetch(&ring_[(position + 4) % Capacity], 1);  // a seldom caller finds the ring evicted from its caches
  }

  /// The operation entered last, of which there must be one, goes to sleep, at this time of the world's clock in
  /// microseconds.
  void wait_from(std::uint64_t now_us) noexcept { open_->end.store(now_us << 1, std::memory_order_release); }

  /// The operation entered last, of which there must be one, is over; it slept for so many microseconds.
  void finish(std::uint64_t waited_us = 0) noexcept { open_->end.store(waited_us << 1 | 1, std::memory_order_release); }

  /// For the writer: the number of the site of the operation entered last. Any thread may ask for its text.
  [[nodiscard]] std::uint16_t last_site() const noexcept {
    return count() == 0 ? site_table<>::unknown : static_cast<std::uint16_t>(last_site_);
  }
  [[nodiscard]] std::string site_text(std::uint16_t number) const { return text_of(number, count()); }

  /// Operations entered so far.
  [[nodiscard]] std::uint64_t count() const noexcept { return written_.load(std::memory_order_acquire); }
  [[nodiscard]] static constexpr std::size_t capacity() noexcept { return Capacity; }

  /// Operation `position` (from 0); an empty record when it is no longer, or not yet, in the ring.
  [[nodiscard, gnu::cold]] flight_record operator[](std::uint64_t position) const {
    if (position >= count()) return {};
    const record_slot& slot = ring_[position % Capacity];
    const std::uint64_t what = slot.what.load(std::memory_order_acquire);
    flight_record out;
    out.number = slot.number.load(std::memory_order_acquire);
    out.bytes = slot.bytes.load(std::memory_order_acquire);
    const std::uint64_t end = slot.end.load(std::memory_order_acquire);
    // Had one of them been of a later operation, the word with the position would be too by now.
    if (what >> 48 != stamp_of(position) >> 48 || what != slot.what.load(std::memory_order_relaxed)) return {};
    // That word has the position modulo 65,536; a reader that was delayed for so many operations sees it here.
    if (count() > position + Capacity) return {};
    out.what = static_cast<operation>(what & 0xff);
    out.group = static_cast<std::uint32_t>(what >> 24 & 0xffffff);
    out.finished = (end & 1) != 0;
    (out.finished ? out.waited_us : out.waiting_us) = end >> 1;
    out.site = text_of(static_cast<std::uint16_t>(what >> 8), position + 1);
    return out;
  }

  /// The operation entered last; an empty record before the first.
  [[nodiscard, gnu::cold]] flight_record last() const {
    for (int attempt = 0; attempt < 3; ++attempt) {
      const std::uint64_t position = count();
      if (position == 0) return {};
      flight_record out = (*this)[position - 1];
      if (out.what != operation::none) return out;
    }
    return {};
  }

 private:
  struct record_slot {
    std::atomic<std::uint64_t> what{
        0};  // operation, site, group, and in the upper 16 bits the position, counted from 1
    std::atomic<std::uint64_t> number{0};
    std::atomic<std::uint64_t> bytes{0};
    std::atomic<std::uint64_t> end{0};  // microseconds, and whether it is over: slept, or since when it sleeps
  };

  [[nodiscard]] static constexpr std::uint64_t stamp_of(std::uint64_t position) noexcept {
    return (position + 1) << 48;
  }
  // Of an operation that enters.
  [[gnu::cold, gnu::noinline]] void remember_site(const char* file, int line) noexcept {
    last_site_ = sites_.number_of(file, line);
    last_file_ = file;
    last_line_ = line;
    if (last_site_ == site_table<>::unknown) latest_.set(written_.load(std::memory_order_relaxed) + 1, file, line);
  }
  [[nodiscard]] std::string text_of(std::uint16_t site, std::uint64_t position) const {
    return site == site_table<>::unknown ? latest_.of(position) : sites_.text(site);
  }

  std::atomic<std::uint64_t> written_{0};
  // Of the writer, whose addresses mean nothing to others. A loop calls from the same line again and again.
  record_slot* open_ = nullptr;  // entered last
  const char* last_file_ = nullptr;
  int last_line_ = 0;
  std::uint64_t last_site_ = 0;
  alignas(64) std::array<record_slot, Capacity> ring_{};
  site_table<> sites_;
  latest_site latest_;
};

/// The state of a rank: `left` has ended its body, `gone` has lost its process before that, `absent` has not had one
/// yet; `unknown` runs on a machine of which nothing is known here.
enum class rank_state { running, stopped, gone, left, absent, unknown };

[[nodiscard]] constexpr const char* name(rank_state state) noexcept {
  switch (state) {
    case rank_state::running: return "running";
    case rank_state::stopped: return "stopped";
    case rank_state::gone: return "gone";
    case rank_state::left: return "left";
    case rank_state::absent: return "absent";
    case rank_state::unknown: return "unknown";
  }
  return "unknown";
}

/// A group by its number, and its ranks of the world in group order.
struct known_group {
  std::uint32_t number = 0;
  std::vector<int> members;
};

/// The operations of one rank in one lane: its recorder, which must outlive this, or what its messages said.
class flight_history {
 public:
  flight_history() = default;
  explicit flight_history(const flight_recorder<>& own) noexcept : recorder_(&own) {}
  /// The latest ones of `count`, the oldest first.
  flight_history(std::vector<flight_record> records, std::uint64_t count) noexcept
      : records_(std::move(records)), count_(count) {}

  /// Operations so far, and the oldest that may be kept.
  [[nodiscard]] std::uint64_t count() const noexcept { return recorder_ != nullptr ? recorder_->count() : count_; }
  [[nodiscard]] std::uint64_t first() const noexcept {
    const std::uint64_t kept = recorder_ != nullptr ? recorder_->capacity() : records_.size();
    return count() > kept ? count() - kept : 0;
  }
  /// Operation `number`; an empty record when it is not kept.
  [[nodiscard]] flight_record operator[](std::uint64_t number) const {
    if (recorder_ != nullptr) return (*recorder_)[number];
    return number < first() || number >= count_ ? flight_record{} : records_[number - first()];
  }
  [[nodiscard]] flight_record last() const {
    if (recorder_ != nullptr) return recorder_->last();
    return records_.empty() ? flight_record{} : records_.back();
  }

 private:
  const flight_recorder<>* recorder_ = nullptr;
  std::vector<flight_record> records_;
  std::uint64_t count_ = 0;
};

/// All that is known of a world of ranks when it stopped: why, the state of each rank, and its last operations. A
/// backend fills it in: from recorders that all ranks share, or from its own one and the messages of the others.
struct flight_rank {
  std::int64_t pid = 0;  // 0: a thread
  rank_state state = rank_state::unknown;
  flight_history called, started;

  [[nodiscard]] const flight_history& of(lane which) const noexcept { return which == lane::caller ? called : started; }
};

/// A world as the process that reports sees it.
struct flight_snapshot {
  std::uint64_t job = 0;
  std::uint64_t epoch = 0;  // how often survivors went on without others
  std::string transport;    // "threads", "processes", "mpi"
  int told_by = -1;  // the rank that reports, with its own operations and the messages of others; -1: all are known
  std::optional<abort_cause> cause;
  std::uint64_t until_us = 0;  // when it stopped, by the world's clock; else now
  std::vector<flight_rank> ranks;
  std::vector<known_group> groups;

  [[nodiscard]] int size() const noexcept { return static_cast<int>(ranks.size()); }
  [[nodiscard]] const flight_rank& rank(int which) const noexcept { return ranks[static_cast<std::size_t>(which)]; }
};

/// A time as recorders keep it.
[[nodiscard]] inline std::uint64_t flight_microseconds(std::chrono::steady_clock::time_point at) noexcept {
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::microseconds>(at.time_since_epoch()).count());
}

}  // namespace belay::inline BELAY_ABI

#if !defined(BELAY_SEPARATE_COMPILATION)
#include "belay/comm/flight_recorder.ipp"  // IWYU pragma: export
#endif
