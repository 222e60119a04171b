// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What a protocol needs of the machine, as a type parameter: time, atomics, files. The defaults call the machine
// directly and cost nothing. A test gives a clock that it moves by hand, atomics that a model checker schedules, or
// files that fail at the n-th call. Each policy asks for the least that the protocols use. Worlds are no templates:
// their clock is an object, a `time_source`.
//
//   template <belay::clock_policy Clock = belay::monotonic_clock>
//   std::int64_t nanoseconds_of(void (*work)()) {
//     const std::int64_t begin = Clock::now();
//     work();
//     return Clock::now() - begin;
//   }
#pragma once

#include <dirent.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <optional>

#include "belay/core/config.hpp"

namespace belay::inline BELAY_ABI {

// Transfers of an open file around the page cache (O_DIRECT), where its file system has them.

/// The number of bytes that offsets, lengths and addresses of direct transfers are multiples of, a power of two; 0
/// where the file system has no such transfers for this file, and nothing where it does not tell.
[[nodiscard]] inline std::optional<std::size_t> direct_alignment_of(int descriptor) noexcept {
#if defined(STATX_DIOALIGN)  // kernel headers from 6.1 on
  struct statx facts{};
  if (::statx(descriptor, "", AT_EMPTY_PATH, STATX_DIOALIGN, &facts) == 0 && (facts.stx_mask & STATX_DIOALIGN) != 0) {
    const std::size_t of_memory = facts.stx_dio_mem_align;
    const std::size_t of_offsets = facts.stx_dio_offset_align;
    return of_offsets < of_memory && of_offsets != 0 ? of_memory : of_offsets;
  }
#else
  static_cast<void>(descriptor);
#endif
  return std::nullopt;
}

/// Makes later transfers go around the page cache, or through it again: 0, or -1 and errno.
[[nodiscard]] inline int make_direct(int descriptor) noexcept {
  const int flags = ::fcntl(descriptor, F_GETFL);
  return flags < 0 ? flags : ::fcntl(descriptor, F_SETFL, flags | O_DIRECT);
}
[[nodiscard]] inline int make_buffered(int descriptor) noexcept {
  const int flags = ::fcntl(descriptor, F_GETFL);
  return flags < 0 ? flags : ::fcntl(descriptor, F_SETFL, flags & ~O_DIRECT);
}

/// A clock that never goes back. `now` is in nanoseconds since an arbitrary origin. `sleep` returns after that many
/// nanoseconds of this clock, or earlier.
template <class C>
concept clock_policy = requires(C clock, std::int64_t nanoseconds) {
  { clock.now() } -> std::same_as<std::int64_t>;
  clock.sleep(nanoseconds);
};

/// The machine's monotonic clock.
struct monotonic_clock {
  /// Nanoseconds that never go back; sleeps for so many.
  [[nodiscard]] static std::int64_t now() noexcept {
    timespec time{};
    ::clock_gettime(CLOCK_MONOTONIC, &time);
    return std::int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
  }
  static void sleep(std::int64_t nanoseconds) noexcept {
    if (nanoseconds <= 0) return;
    const timespec time{static_cast<time_t>(nanoseconds / 1'000'000'000),
                        static_cast<long>(nanoseconds % 1'000'000'000)};
    ::nanosleep(&time, nullptr);
  }
};

/// The clock by which a world measures what it waits for, in the place of the machine's: a simulator's, or one that a
/// test moves. Asked from any thread. It outlives the world and all that the world made.
class time_source {
 public:
  /// A time of the steady clock's type, as deadlines are.
  using time_point = std::chrono::steady_clock::time_point;
  /// Later than `time_point{}`, which stands for none; never goes back.
  [[nodiscard]] virtual time_point now() const noexcept = 0;

 protected:
  ~time_source() = default;
};

/// The time by this clock, or by the machine's steady clock where there is none.
[[nodiscard]] inline time_source::time_point time_by(const time_source* clock) noexcept {
  return clock == nullptr ? std::chrono::steady_clock::now() : clock->now();
}

/// The operations of a lock-free protocol: atomics, a hint to the core that it spins (`relax`), and giving the core to
/// another thread (`yield`). There are no fences, because thread sanitizer does not understand them.
template <class A>
concept atomics_policy = requires(typename A::template atomic<std::uint32_t> word, std::uint32_t value) {
  { word.load(std::memory_order_acquire) } -> std::same_as<std::uint32_t>;
  word.store(value, std::memory_order_release);
  { word.fetch_add(value, std::memory_order_acq_rel) } -> std::same_as<std::uint32_t>;
  { word.exchange(value, std::memory_order_acq_rel) } -> std::same_as<std::uint32_t>;
  { word.compare_exchange_strong(value, value, std::memory_order_acq_rel) } -> std::same_as<bool>;
  A::relax();
  A::yield();
};

/// The standard library's atomics.
struct std_atomics {
  template <class T>
  using atomic = std::atomic<T>;

  /// Tells the core that this thread spins, so that the sibling hyper-thread runs faster.
  static void relax() noexcept {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
  }
  static void yield() noexcept { ::sched_yield(); }
};

/// The system calls that write a file so that a crash loses nothing, and those that read one or ask for it. Results and
/// errno are those of POSIX, so that an injected failure looks like a real one.
template <class F>
concept files_policy = requires(F files, const char* path, int flags, int descriptor, void* to, const void* from,
                                std::size_t bytes, off_t offset, struct stat& facts) {
  { files.open(path, flags, mode_t{}) } -> std::same_as<int>;
  { files.read_at(descriptor, to, bytes, offset) } -> std::same_as<ssize_t>;
  { files.write_at(descriptor, from, bytes, offset) } -> std::same_as<ssize_t>;
  { files.sync(descriptor) } -> std::same_as<int>;
  { files.close(descriptor) } -> std::same_as<int>;
  { files.rename(path, path) } -> std::same_as<int>;
  { files.remove(path) } -> std::same_as<int>;
  { files.ask(path, facts) } -> std::same_as<int>;
  { files.ask_open(descriptor, facts) } -> std::same_as<int>;
  { files.permit(descriptor, mode_t{}) } -> std::same_as<int>;
  { files.reserve(descriptor, offset) } -> std::same_as<int>;
  { files.resize(descriptor, offset) } -> std::same_as<int>;
  { files.make_direct(descriptor) } -> std::same_as<int>;
  { files.make_buffered(descriptor) } -> std::same_as<int>;
};

/// Folders by system calls: they are made, listed, locked and removed.
template <class F>
concept folders_policy = files_policy<F> && requires(F files, const char* path, int folder, void* to, std::size_t bytes,
                                                     struct stat& facts) {
  { files.make_folder(path, mode_t{}) } -> std::same_as<int>;
  { files.remove_folder(path) } -> std::same_as<int>;
  { files.ask_link(path, facts) } -> std::same_as<int>;
  { files.list(folder, to, bytes) } -> std::same_as<ssize_t>;
  { files.remove_in(folder, path) } -> std::same_as<int>;
  { files.lock(folder) } -> std::same_as<int>;
};

/// The machine's files.
struct posix_files {
  /// The system's calls, with their results and errno.
  [[nodiscard]] static int open(const char* path, int flags, mode_t mode) noexcept { return ::open(path, flags, mode); }
  [[nodiscard]] static ssize_t read_at(int descriptor, void* to, std::size_t bytes, off_t offset) noexcept {
    return ::pread(descriptor, to, bytes, offset);
  }
  [[nodiscard]] static ssize_t write_at(int descriptor, const void* from, std::size_t bytes, off_t offset) noexcept {
    return ::pwrite(descriptor, from, bytes, offset);
  }
  [[nodiscard]] static int sync(int descriptor) noexcept { return ::fsync(descriptor); }
  [[nodiscard]] static int close(int descriptor) noexcept { return ::close(descriptor); }
  [[nodiscard]] static int rename(const char* from, const char* to) noexcept { return ::rename(from, to); }
  [[nodiscard]] static int remove(const char* path) noexcept { return ::unlink(path); }
  [[nodiscard]] static int make_folder(const char* path, mode_t mode) noexcept { return ::mkdir(path, mode); }
  [[nodiscard]] static int remove_folder(const char* path) noexcept { return ::rmdir(path); }
  /// Asks about the file at `path`, behind links or, `ask_link`, the link itself; what is open.
  [[nodiscard]] static int ask(const char* path, struct stat& facts) noexcept { return ::stat(path, &facts); }
  [[nodiscard]] static int ask_link(const char* path, struct stat& facts) noexcept { return ::lstat(path, &facts); }
  [[nodiscard]] static int ask_open(int descriptor, struct stat& facts) noexcept { return ::fstat(descriptor, &facts); }
  [[nodiscard]] static int permit(int descriptor, mode_t mode) noexcept { return ::fchmod(descriptor, mode); }
  /// `reserve` takes the room on the medium, `resize` gives the size alone.
  [[nodiscard]] static int reserve(int descriptor, off_t bytes) noexcept {
    return ::fallocate(descriptor, 0, 0, bytes);
  }
  [[nodiscard]] static int resize(int descriptor, off_t bytes) noexcept { return ::ftruncate(descriptor, bytes); }
  /// Writes go around the page cache, or through it.
  [[nodiscard]] static int make_direct(int descriptor) noexcept { return belay::make_direct(descriptor); }
  [[nodiscard]] static int make_buffered(int descriptor) noexcept { return belay::make_buffered(descriptor); }
  /// Fills `to` with the next `dirent64` of an open folder, as getdents64 does.
  [[nodiscard]] static ssize_t list(int folder, void* to, std::size_t bytes) noexcept {
    return ::getdents64(folder, to, bytes);
  }
  /// Removes a name of an open folder: of a link, the link.
  [[nodiscard]] static int remove_in(int folder, const char* name) noexcept { return ::unlinkat(folder, name, 0); }
  /// A lock that ends with the descriptor, and is not waited for.
  [[nodiscard]] static int lock(int folder) noexcept { return ::flock(folder, LOCK_EX | LOCK_NB); }
};

static_assert(clock_policy<monotonic_clock> && atomics_policy<std_atomics> && folders_policy<posix_files>);

}  // namespace belay::inline BELAY_ABI
