// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A stream that runs beside its caller: a fixed ring of small closures, run by a thread of its own or when an arbiter
// says so, and events that order streams among each other as on a device. Queueing allocates nothing; a full ring makes
// the caller wait instead of growing.
//
//   belay::queue_stream copies, compute;
//   copies.run([=] { std::memcpy(to, from, bytes); });
//   compute.wait(copies.record());  // what is queued from here on begins after the copy
//   compute.run([=] { use(to); });
//   compute.synchronize();
#pragma once

#include <chrono>
#include <concepts>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "belay/core/config.hpp"
#include "belay/core/where.hpp"
#include "belay/device/stream.hpp"
#include "belay/device/stream_event.hpp"

namespace belay::inline BELAY_ABI {

class stream_arbiter;
class stream_watch;

class queue_stream {
  class progress;
  class turns;

 public:
  static constexpr std::size_t capacity = 256;      // pieces of work queued at most; one more waits
  static constexpr std::size_t closure_room = 288;  // bytes of a piece of work
  static constexpr std::size_t label_room = 32;     // and of what tells whose it is, where its type has `label_bytes`

  /// With a thread of its own. Where the rank's world gives a `watch`, every wait for the stream, and of it, ends: with
  /// a `comm_error` where one piece of work has run for longer than the limit, or the world has failed.
  explicit queue_stream(stream_kind kind = stream_kind::compute, std::shared_ptr<const stream_watch> watch = {});
  /// Runs when `arbiter` says so: a stream of `rank`, whose host thread waits through the arbiter alone.
  queue_stream(std::shared_ptr<stream_arbiter> arbiter, int rank, stream_kind kind = stream_kind::compute);
  queue_stream(const queue_stream&) = delete;  // a stream is one order
  queue_stream& operator=(const queue_stream&) = delete;
  /// Runs what is queued, then ends the thread. An exception that nobody fetched by `synchronize` is dropped. Where a
  /// piece of work does not end within the watch's limit, the program ends: what it writes cannot be freed.
  ~queue_stream();

  /// Queues `work()`: small and trivially copyable, because it is kept by value until it has run. What it points to
  /// lives until then. After a piece of work has thrown, later ones are skipped until `synchronize`.
  template <std::invocable Work>
  void run(const Work& work) {
    constexpr std::size_t room = closure_room + label_bytes_of<Work>();
    static_assert(
        std::is_trivially_copyable_v<Work> && sizeof(Work) <= room,
        "belay: work for an asynchronous stream is kept by value: capture pointers and sizes, at most 288 bytes");
    if constexpr (std::is_trivially_copyable_v<Work> && sizeof(Work) <= room) {
      closure& slot = next_slot();
      ::new (static_cast<void*>(slot.storage)) Work(work);
      slot.call = [](closure& self) { (*std::launder(reinterpret_cast<Work*>(self.storage)))(); };
      slot.signature = signature_of<Work>();
      submit();
    }
  }

  /// Marks the present end of the queue.
  [[nodiscard]] stream_event record() const;

  /// Work queued from here on begins after `mark` is reached; it is skipped where what `mark` marks has failed. An
  /// event of a stream that itself waits for this place never is reached.
  void wait(const stream_event& mark, where at = where::current());

  /// Returns when all queued work is over; rethrows the first exception of it.
  void synchronize(where at = where::current());
  /// Returns when all queued work is over, and leaves its exception to the next `synchronize`.
  void wait_until_idle(where at = where::current()) const;
  /// Skips what is queued and has not begun, and waits for no event meanwhile: work that is queued later begins after
  /// the events that were to be waited for. Returns when the running piece of work is over; ends the program, as the
  /// destructor does, where it does not end.
  void cancel() noexcept;

 private:
  struct closure {
    alignas(std::max_align_t) std::byte storage[closure_room + label_room];
    void (*call)(closure&) = nullptr;
    const char* signature = nullptr;  // of the work
    stream_event mark;                // of another stream, where the work is to wait for it
    where waited_at;
    progress* of = nullptr;  // the own stream's
  };

  template <class Work>
  [[nodiscard]] static constexpr std::size_t label_bytes_of() noexcept {
    if constexpr (requires { Work::label_bytes; }) {
      static_assert(Work::label_bytes <= label_room);
      return Work::label_bytes;
    } else {
      return 0;
    }
  }

  struct owed_wait {
    stream_event mark;
    where at;
  };

  // Has the name of the work in it, for messages.
  template <class Work>
  [[nodiscard]] static constexpr const char* signature_of() noexcept {
    return __PRETTY_FUNCTION__;
  }

  // Its slot is the caller's until it is submitted.
  [[nodiscard]] closure& next_slot();
  void submit();
  void serve();
  void run_slot(std::uint64_t number) noexcept;
  void owe(closure& passed);
  [[nodiscard]] bool await_owed();  // false where that was cut short

  std::shared_ptr<progress> progress_;
  std::unique_ptr<closure[]> ring_;
  std::vector<owed_wait> owed_;  // those that have not ended, one a source; of who runs the work
  std::uint64_t queued_ = 0;  // by the thread that queues
  bool ending_ = false;
  std::unique_ptr<turns> turns_;
  std::thread thread_;  // last: it uses the others
};

static_assert(stream<queue_stream>);

}  // namespace belay::inline BELAY_ABI

#if !defined(BELAY_SEPARATE_COMPILATION)
#include "belay/device/queue_stream.ipp"  // IWYU pragma: export
#endif
