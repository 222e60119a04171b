// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What the tests of the file tier share: memory of whole blocks, a directory, system calls that fail when told to, and
// rings of these: the kernel's, and one that needs no kernel and ends the last call first.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>

#include "belay/device/tier_file.hpp"

namespace tier_files {

struct folder {
  std::string path = [] {
    char name[] = "/tmp/belay_tier_file_XXXXXX";
    return std::string(::mkdtemp(name));
  }();
  ~folder() { std::filesystem::remove_all(path); }
  [[nodiscard]] bool empty() const { return std::filesystem::is_empty(path); }
};

class blocks {
 public:
  explicit blocks(std::size_t bytes) : bytes_(bytes), data_(std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096)) {}
  blocks(std::size_t bytes, unsigned seed) : blocks(bytes) { fill(seed); }

  [[nodiscard]] std::span<std::byte> all() const { return {static_cast<std::byte*>(data_.get()), bytes_}; }
  void fill(unsigned seed) const {
    for (std::byte& each : all()) each = static_cast<std::byte>((seed = seed * 1664525U + 1013904223U) >> 24U);
  }
  [[nodiscard]] bool operator==(const blocks& other) const { return std::ranges::equal(all(), other.all()); }

 private:
  struct release {
    void operator()(void* data) const { std::free(data); }
  };
  std::size_t bytes_;
  std::unique_ptr<void, release> data_;
};

// What the next calls are to do; `calm` is nothing unusual.
struct weather {
  // Of transfers.
  std::atomic<std::size_t> most_bytes = std::numeric_limits<std::size_t>::max();  // a call moves no more
  std::atomic<int> interruptions = 0;                                             // so many calls end before they begin
  std::atomic<std::int64_t> bad_offset = -1;  // a call that begins there moves nothing and ends with `result`
  std::atomic<std::int64_t> result = 0;
  std::atomic<bool> spares_reads = false;  // only a write does, of those that a thread makes
  std::atomic<bool> closed_gate = false;  // calls wait
  std::atomic<std::size_t> at_gate = 0;
  // Of opening: error numbers, 0 for none.
  int open_unnamed = 0, open_new = 0, unlink = 0, allocate = 0, make_direct = 0;
  int interrupted_opens = 0;
  std::optional<std::optional<std::size_t>> alignment;
  std::string ring;  // why there is none
  int submit = 0;
  // What has happened.
  int open = 0;
  int descriptor = -1;
  std::atomic<std::size_t> most_under_way = 0;
  std::atomic<int> asking = 0;  // threads that want results of a ring
  std::atomic<bool> asked_by_two = false;

  // The result of a call that is not to be made.
  [[nodiscard]] std::optional<std::int64_t> instead(std::uint64_t offset) noexcept {
    at_gate.fetch_add(1);
    at_gate.notify_all();
    closed_gate.wait(true);
    constexpr std::array kinds{EINTR, EAGAIN, ECANCELED};  // the last: the thread that submitted has ended
    if (const int left = interruptions.load(); left > 0 && interruptions.fetch_sub(1) > 0)
      return -kinds[static_cast<std::size_t>(left) % kinds.size()];
    if (static_cast<std::int64_t>(offset) == bad_offset.load()) return result.load();
    return std::nullopt;
  }
};

inline weather now;  // system calls have no state of their own

struct calm {
  calm() {
    std::destroy_at(&now);
    std::construct_at(&now);
  }
  ~calm() { CHECK(now.open == 0); }  // every descriptor was closed
};

// What a ring submits, or a thread calls.
template <class Ring>
struct faulty_calls : belay::basic_tier_file_calls<Ring> {
  using machine = belay::basic_tier_file_calls<Ring>;

  static int refused(int code) {
    errno = code;
    return -1;
  }
  static int opened(int descriptor) {
    if (descriptor >= 0) ++now.open;
    return now.descriptor = descriptor;
  }
  static int open_unnamed(const char* directory) {
    if (now.interrupted_opens-- > 0) return refused(EINTR);
    return now.open_unnamed != 0 ? refused(now.open_unnamed) : opened(machine::open_unnamed(directory));
  }
  static int open_new(const char* path) {
    return now.open_new != 0 ? refused(now.open_new) : opened(machine::open_new(path));
  }
  static int unlink(const char* path) { return now.unlink != 0 ? refused(now.unlink) : machine::unlink(path); }
  static int allocate(int descriptor, off_t bytes) {
    return now.allocate != 0 ? now.allocate : machine::allocate(descriptor, bytes);
  }
  static int make_direct(int descriptor) {
    return now.make_direct != 0 ? refused(now.make_direct) : machine::make_direct(descriptor);
  }
  static std::optional<std::size_t> direct_alignment(int descriptor) {
    return now.alignment ? *now.alignment : machine::direct_alignment(descriptor);
  }
  static ssize_t read_at(int descriptor, void* to, std::size_t bytes, off_t offset) {
    if (now.spares_reads) return machine::read_at(descriptor, to, bytes, offset);
    if (const auto other = now.instead(static_cast<std::uint64_t>(offset))) return said(*other);
    return machine::read_at(descriptor, to, std::min(bytes, now.most_bytes.load()), offset);
  }
  static ssize_t write_at(int descriptor, const void* from, std::size_t bytes, off_t offset) {
    if (const auto other = now.instead(static_cast<std::uint64_t>(offset))) return said(*other);
    return machine::write_at(descriptor, from, std::min(bytes, now.most_bytes.load()), offset);
  }
  static int close(int descriptor) {
    --now.open;
    return machine::close(descriptor);
  }

 private:
  static ssize_t said(std::int64_t result) {
    if (result >= 0) return result;
    errno = static_cast<int>(-result);
    return -1;
  }
};

// The machine's ring, where it has one.
class faulty_kernel_ring : public belay::system_transfer_ring {
 public:
  std::string open(unsigned calls) { return now.ring.empty() ? belay::system_transfer_ring::open(calls) : now.ring; }
  int submit(const belay::transfer_call& call, std::uint64_t tag) noexcept {
    if (now.submit != 0) return now.submit;
    const auto other = now.instead(call.offset);
    belay::transfer_call shorter = call;
    shorter.bytes = other ? 0 : std::min(call.bytes, now.most_bytes.load());
    const std::lock_guard lock(mutex_);  // what the kernel orders a sanitizer cannot see
    replaced_[tag] = other;
    return belay::system_transfer_ring::submit(shorter, tag);
  }
  belay::transfer_completion wait() noexcept { return replaced(belay::system_transfer_ring::wait()); }
  bool poll(belay::transfer_completion& over) noexcept {
    if (!belay::system_transfer_ring::poll(over)) return false;
    over = replaced(over);
    return true;
  }

 private:
  belay::transfer_completion replaced(belay::transfer_completion over) noexcept {
    const std::lock_guard lock(mutex_);
    if (replaced_[over.tag]) over.result = *replaced_[over.tag];
    return over;
  }
  std::mutex mutex_;
  std::array<std::optional<std::int64_t>, 16> replaced_{};
};

// Makes its calls when it is asked for results, the last one first.
class backward_ring {
 public:
  std::string open(unsigned) { return now.ring; }
  int submit(const belay::transfer_call& call, std::uint64_t tag) noexcept {
    if (now.submit != 0) return now.submit;
    const std::lock_guard lock(mutex_);
    calls_[count_++] = {call, tag};
    now.most_under_way = std::max(now.most_under_way.load(), count_);
    return 0;
  }
  belay::transfer_completion wait() noexcept {
    if (now.asking.fetch_add(1) != 0) now.asked_by_two = true;
    const belay::transfer_completion over = end_last();
    now.asking.fetch_sub(1);
    return over;
  }
  bool poll(belay::transfer_completion& over) noexcept {
    {
      const std::lock_guard lock(mutex_);
      if (count_ == 0) return false;
    }
    over = wait();
    return true;
  }

 private:
  struct one {
    belay::transfer_call call;
    std::uint64_t tag = 0;
  };
  belay::transfer_completion end_last() noexcept {
    one last;
    {
      const std::lock_guard lock(mutex_);
      REQUIRE(count_ != 0);
      last = calls_[--count_];
    }
    using calls = faulty_calls<belay::no_transfer_ring>;
    const auto at = static_cast<off_t>(last.call.offset);
    const ssize_t moved = last.call.operation == belay::tier_file_operation::read
                              ? calls::read_at(last.call.descriptor, last.call.address, last.call.bytes, at)
                              : calls::write_at(last.call.descriptor, last.call.address, last.call.bytes, at);
    return {last.tag, moved < 0 ? -errno : moved};
  }
  std::mutex mutex_;
  std::array<one, 16> calls_{};
  std::size_t count_ = 0;
};

// The ways that a test is repeated for.
struct by_thread {
  using calls = faulty_calls<belay::no_transfer_ring>;
  static constexpr auto access = belay::file_access::thread;
};
struct by_kernel_ring {
  using calls = faulty_calls<faulty_kernel_ring>;
  static constexpr auto access = belay::file_access::ring;
};
struct by_backward_ring {
  using calls = faulty_calls<backward_ring>;
  static constexpr auto access = belay::file_access::ring;
};

// Whether this way exists here; else the test says that it is skipped.
template <class Way>
[[nodiscard]] bool exists() {
  try {
    const belay::tier_file<typename Way::calls> probe("/tmp", 0, 1, Way::access);
    return true;
  } catch (const belay::tier_file_error& refusal) {
    MESSAGE("skipped: ", std::string(refusal.what()));
    return false;
  }
}

template <class Calls>
void write(belay::tier_file<Calls>& file, std::uint64_t offset, const blocks& from) {
  file.start_write(offset, from.all()).wait();
}
template <class Calls>
void read_blocks(belay::tier_file<Calls>& file, std::uint64_t offset, const blocks& to) {
  file.start_read(offset, to.all()).wait();
}

}  // namespace tier_files
