// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Decides which stream runs next where all streams are late on purpose. It waits until the host thread of every rank
// waits for something, and then lets one piece of work of one stream run, chosen by a seeded generator: the same seed
// gives the same order. A communication runs when it is next on the streams of all ranks that it needs.
//
//   auto arbiter = std::make_shared<belay::stream_arbiter>(seed, ranks);
//   belay::launch(belay::host::world{2}, train, {.streams = {belay::stream_policy::adversarial, 7}});  // makes one
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <mutex>
#include <span>
#include <vector>

#include "belay/core/config.hpp"
#include "belay/core/function_ref.hpp"
#include "belay/device/stream_event.hpp"

namespace belay::inline BELAY_ABI {

/// A message of an exchange, to or from `peer`, a rank of the world.
struct stream_transfer {
  /// The other rank and the direction.
  enum class direction : std::uint8_t { send, receive };
  int peer = 0;
  direction way = direction::send;
};

/// The peers that a communication needs. A collective begins when it is next on the streams of all `ranks`, its own
/// among them, with the same `key`. An exchange begins alone, and ends when every transfer has met its partner.
struct stream_meeting {
  /// The number of the communication; beside it the ranks of a collective or the transfers of an exchange.
  std::uint64_t key = 0;
  std::span<const int> ranks;
  std::span<const stream_transfer> transfers;

  /// Whether all ranks take part.
  [[nodiscard]] bool collective() const noexcept { return !ranks.empty(); }
};

/// A stream whose work an arbiter lets run. Its functions are called under the arbiter's lock, but `run_next`.
class arbitrated {
 public:
  /// The runner of the work: the thread that calls `stream_arbiter::wait`, by `run_next`, or a thread of its own, which
  /// waits for its turn: that of a stream, or a host in a blocking call.
  enum class runner : std::uint8_t { waiting_host, own_thread, host };

  /// Whether there is a next piece of work, and what it waits for has happened.
  [[nodiscard]] virtual bool can_run() const noexcept = 0;
  /// Runs the next piece of work.
  virtual void run_next() noexcept {}
  /// The next piece of work as a communication; null where it is of this rank alone. It stays until that is over.
  [[nodiscard]] virtual const stream_meeting* meets() const noexcept { return nullptr; }

  /// A stream of that rank; `by` runs its next piece of work.
  arbitrated(int rank, runner by, stream_kind kind = stream_kind::compute) noexcept
      : rank_(rank), by_(by), kind_(kind) {}
  arbitrated(const arbitrated&) = delete;  // the arbiter keeps its address
  arbitrated& operator=(const arbitrated&) = delete;

 protected:
  ~arbitrated() = default;

 private:
  friend class stream_arbiter;
  int rank_;
  runner by_;
  stream_kind kind_;
  bool granted_ = false;
  std::condition_variable* sleeper_ = nullptr;  // of the thread that waits for its turn
  const stream_meeting* meeting_ = nullptr;     // of what has its turn
  bool in_meeting_ = false;                     // while candidates are found
  std::vector<std::uint64_t> messages_;         // the number of each transfer among all between the same ranks
};

/// Shared by all ranks of a world of threads.
class stream_arbiter {
 public:
  /// `hosts` threads will take part, each as a `host`. Seed 0 prefers communications to computations, and
  /// these to copies between tiers: as late as possible for what they read.
  stream_arbiter(std::uint64_t seed, std::size_t hosts);
  stream_arbiter(const stream_arbiter&) = delete;
  stream_arbiter& operator=(const stream_arbiter&) = delete;

  /// The calling thread is a rank's until this is destroyed: nothing runs while it does not wait. Left by an exception,
  /// it opens the arbiter.
  class host {
   public:
    /// The host thread of one rank.
    explicit host(stream_arbiter& owner) noexcept : owner_(&owner) {}
    host(const host&) = delete;
    host& operator=(const host&) = delete;
    ~host() {
      if (std::uncaught_exceptions() > exceptions_) owner_->open();
      owner_->remove_host();
    }

   private:
    stream_arbiter* owner_;
    int exceptions_ = std::uncaught_exceptions();
  };

  /// The stream is chosen from then on, until it ends.
  void add(arbitrated& stream);
  /// Its work is over: it is forgotten.
  void remove(arbitrated& stream) noexcept;

  /// A host waits until `done()`, which is asked under the lock. Meanwhile it runs what has its turn.
  void wait(function_ref<bool()> done);
  /// A host begins a blocking call, which has been added: waits until it has its turn. It counts as waiting until
  /// `end_call`.
  void begin_call(arbitrated& call);
  void end_call(arbitrated& call) noexcept;
  /// A thread of a stream waits until `stream` has its turn.
  void await_turn(arbitrated& stream);
  /// The piece of work of `stream` that had its turn is over.
  void finished(arbitrated& stream) noexcept;
  /// Everything may run from now on: after a failure, nothing is gained by an order.
  void open() noexcept;

  /// The number that its choices are drawn from: the same seed gives the same order.
  [[nodiscard]] std::uint64_t seed() const noexcept { return seed_; }

 private:
  struct waiting_host {
    function_ref<bool()> done;
    bool released;
    std::condition_variable called;
  };

  void remove_host() noexcept;
  void let_all_run() noexcept;
  void schedule(std::unique_lock<std::mutex>& lock, std::condition_variable& called);
  void sleep(std::unique_lock<std::mutex>& lock, std::condition_variable& called);
  void call(std::condition_variable& sleeper) noexcept;
  void call_a_host() noexcept;
  [[nodiscard]] bool release_hosts();
  [[nodiscard]] bool must_end(const arbitrated& stream) const noexcept;
  [[nodiscard]] std::uint64_t& posted(std::uint64_t key, int from, int to, stream_transfer::direction way);
  void run_one(std::unique_lock<std::mutex>& lock, std::condition_variable& called);
  void find_candidates();
  [[nodiscard]] bool lacks_a_rank(const arbitrated& stream) const noexcept;
  [[nodiscard]] arbitrated* in_meeting(int rank, std::uint64_t key) const noexcept;
  void grant(arbitrated& stream);
  [[nodiscard]] std::uint64_t draw(std::uint64_t below) noexcept;

  std::mutex mutex_;
  std::vector<std::condition_variable*> sleepers_;  // hosts: one that is called goes on with what has its turn next
  std::uint64_t random_;
  std::uint64_t seed_;
  std::size_t running_;    // hosts that do not wait
  bool one_runs_ = false;  // a computation
  bool open_ = false;
  std::vector<arbitrated*> streams_;
  std::vector<arbitrated*> candidates_;
  std::vector<waiting_host*> hosts_;
  std::vector<std::vector<std::uint64_t>> lists_;  // of messages, for whoever is added: a blocking call is, each time
  struct channel {
    std::uint64_t key;
    int from, to;
    std::uint64_t sends, receives;  // posted so far
  };
  std::vector<channel> channels_;
};

}  // namespace belay::inline BELAY_ABI

#if !defined(BELAY_SEPARATE_COMPILATION)
#include "belay/device/stream_arbiter.ipp"  // IWYU pragma: export
#endif
