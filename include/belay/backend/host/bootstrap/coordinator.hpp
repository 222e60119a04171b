// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The coordinator of a world of processes, which is no rank: it lets the ranks' processes join, keeps the memory they
// share, sees them end, and leads the survivors to one list of members. One thread, one poll.
// IWYU pragma: private, include "belay/backend/host/processes.hpp"
#pragma once

#include <poll.h>
#include <sys/types.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "belay/backend/host/bootstrap/bootstrap_socket.hpp"
#include "belay/backend/host/bootstrap/messages.hpp"
#include "belay/backend/host/failure/watched_process.hpp"
#include "belay/backend/host/memory/memory_segment.hpp"
#include "belay/core/bounds.hpp"
#include "belay/core/config.hpp"
#include "belay/core/policies.hpp"
#include "belay/core/unique_fd.hpp"
#include "belay/core/where.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

/// One rank, from the start to the end of the world. It joins once.
/// The coordinator's record of one rank, and the watch that finds ranks whose process is stopped for too long.
struct rank_record {
  struct shrink_request {
    std::uint64_t ticket = 0;
    time_point until;
  };

  std::optional<watched_process> child;   // the process that the coordinator's process started for it, if it told
  std::optional<watched_process> member;  // the process that joined, where it is not the child itself
  connection socket;
  bool joined = false;
  bool said_goodbye = false;
  bool deaf = false;  // did not take an answer
  bool child_gone = false;
  bool over = false;  // the rank's process is gone
  std::optional<shrink_request> shrink;
  std::optional<time_point::duration> stopped_for;  // as far as it was seen
  bool told_stalled = false;
  bool beyond_reach = false;  // stopped, and this process may not kill it

  /// The process that is this rank, if one is known and lives.
  [[nodiscard]] const watched_process* alive() const noexcept;
  [[nodiscard]] bool finished() const noexcept { return over && (!child || child_gone); }
  /// It will never again answer or ask.
  [[nodiscard]] bool left() const noexcept {
    return over || said_goodbye || beyond_reach || deaf || (joined && !socket);
  }

  /// Whether a process of it is stopped: the rank, or the child that let another process join.
  [[nodiscard]] bool stopped() const noexcept;
  /// Looks whether it is stopped, `step` after the last look; true when that has lasted for the limit, once for each
  /// stop.
  [[nodiscard]] bool found_stalled(time_point::duration step, time_point::duration limit);

  /// "rank 2 (stopped)"
  [[nodiscard]] std::string text(int rank) const;
};

/// Finds ranks whose process is stopped for too long, by polling: the kernel reports no stop of another process. Looks
/// at all ranks each eighth of the limit, 10 to 250 ms apart, and when one may have reached it.
class stall_watch {
 public:
  using duration = time_point::duration;

  stall_watch(duration limit, time_point now) noexcept : limit_(limit), last_(now), next_(now) {}

  [[nodiscard]] time_point next() const noexcept { return next_; }

  /// `tell(rank)` for each that has been stopped for the limit, once for each stop. Does nothing before `next()`.
  template <class Tell>
  void look(std::vector<rank_record>& seats, time_point now, Tell tell) {
    if (now < next_) return;
    const duration pause =
        std::clamp<duration>(limit_ / 8, std::chrono::milliseconds(10), std::chrono::milliseconds(250));
    // A long gap says that this process was stopped too (Ctrl-Z stops all): the ranks are not charged with it.
    const duration longest = lesser_of<duration>(limit_ / 2, std::chrono::seconds(1));
    const duration step = lesser_of(now - last_, longest);
    last_ = now;
    next_ = now + pause;
    for (std::size_t i = 0; i < seats.size(); ++i) {
      rank_record& here = seats[i];
      if (here.found_stalled(step, limit_)) tell(static_cast<int>(i));
      if (here.stopped_for && !here.told_stalled) next_ = lesser_of(next_, now + (limit_ - *here.stopped_for));
    }
  }

 private:
  duration limit_;
  time_point last_, next_;
};

/// Accepts a process that has the token, is of this user, is the process that its hello names, and whose rank is free.
/// Each connection gets a nonce that its hello must repeat, so that a recorded hello is of no use.
/// Processes that have connected to the coordinator and have not yet proved which rank they are.
class handshake {
 public:
  /// For so long a connection that waits for a free descriptor is tried again: other threads of this process use
  /// descriptors too.
  static constexpr time_point::duration shortage_limit = std::chrono::seconds(1);

  struct joined_process {
    int rank = 0;
    connection socket;
    watched_process process;
  };

  /// A connection without a hello is closed after `hello_limit`, by `clock`.
  handshake(bootstrap_socket& socket, time_point::duration hello_limit, const time_source* clock, where at)
      : listener_(&socket), hello_limit_(hello_limit), clock_(clock), at_(at) {}

  /// The listening socket, or -1: closed, or no descriptor is free.
  [[nodiscard]] int listener() const noexcept { return time_by(clock_) < pause_ ? -1 : listener_->listener(); }
  [[nodiscard]] std::size_t pending() const noexcept { return pending_.size(); }
  [[nodiscard]] int fd(std::size_t which) const noexcept { return pending_[which].socket.fd(); }

  /// The next time at which something is to be done without an event.
  [[nodiscard]] time_point next(time_point until) const noexcept;

  /// Accepts a connection and sends a greeting, unless another user connected. Throws `file_error` where for
  /// `shortage_limit` no descriptor was free.
  void accept(std::size_t ranks);

  /// Reads the hello of a pending connection: a rank's process; or nothing, where the hello was refused in words.
  [[nodiscard]] std::optional<joined_process> read_hello(std::size_t which, const std::vector<rank_record>& records);

  /// Closes connections that waited too long, and all once the listening socket is closed.
  void drop_expired();

 private:
  struct pending_connection {
    connection socket;
    pid_t pid = 0;
    std::uint64_t nonce = 0;
    time_point until;
  };
  static constexpr std::size_t most_beyond = 64;  // pending connections beyond one for each rank

  [[nodiscard]] std::string why_not(const pending_connection& from, const message& hello,
                                    const std::vector<rank_record>& records) const;

  bootstrap_socket* listener_;
  time_point::duration hello_limit_;
  const time_source* clock_;
  where at_;
  std::vector<pending_connection> pending_;
  time_point pause_;
  std::optional<time_point> short_since_;  // of descriptors
};

/// The segments that a world's processes share, by number, each with its holders: a rank as often as it attached. The
/// coordinator keeps each until the last of its holders is gone, so that it outlives the process that made it. A number
/// is never given twice.
class region_store {
 public:
  struct stored_segment {
    unique_fd file;
    std::size_t bytes = 0;
    std::vector<int> holders;
  };

  /// Takes a segment; `rank` has it.
  [[nodiscard]] std::uint64_t keep(unique_fd file, std::size_t bytes, int rank);

  /// `rank` has it too; nothing where there is no such region (any more).
  [[nodiscard]] const stored_segment* add(std::uint64_t region, int rank);

  /// False where `rank` does not have it.
  bool drop(std::uint64_t region, int rank);

  /// `rank` is gone and has nothing any more.
  void forget(int rank);

  /// The answer to a request of `rank` to keep, attach or drop, and the descriptor that goes with it or -1.
  [[nodiscard]] std::pair<message, int> answer(int rank, received request);

  [[nodiscard]] std::size_t size() const noexcept { return regions_.size(); }

 private:
  std::map<std::uint64_t, stored_segment> regions_;
  std::uint64_t next_ = 1;
};

struct coordinator_options {
  /// A rank that is stopped for longer, from its start to its end, is stalled, and killed when others wait for it to
  /// shrink.
  time_point::duration stall_limit = std::chrono::seconds(30);
  /// A connection without a hello is closed after this.
  time_point::duration hello_limit = std::chrono::seconds(10);
  /// Of all its times; null: the machine's. It outlives the coordinator.
  const time_source* clock = nullptr;
};

/// The events that a coordinator tells of its ranks, and the memory and descriptors that it asks for. Ranks are those
/// of the start, also after a shrink. Exceptions of these functions come out of `step` and `run`.
class world_events {
 public:
  virtual ~world_events() = default;

  /// Before the rank gets its answer.
  virtual void on_join(int rank, pid_t pid) = 0;
  /// The rank's process is gone; all its messages were reported before.
  virtual void on_exit(int rank, exit_status how) = 0;
  virtual void on_exit_message(int rank, const exit_message& last) = 0;
  /// A fresh control block for the survivors; called again if one of them dies meanwhile.
  [[nodiscard]] virtual memory_segment& renew(const std::vector<int>& survivors) = 0;
  /// Once for each stop.
  virtual void on_stall(int) {}
  /// A process told by `expect` is gone, also where another process joined for it.
  virtual void on_child_exit(int, exit_status) {}
  /// Adds descriptors to be polled with the coordinator's.
  virtual void add_poll_entries(std::vector<pollfd>&) {}
  /// The poll's reports on the descriptors of `add_poll_entries`, after each poll.
  virtual void on_poll(std::span<const pollfd>) {}
};

/// Serves a world. Ranks in every call are those of the start, also after a shrink.
class coordinator {
 public:
  /// All four outlive the coordinator; the socket is closed when all have joined.
  coordinator(bootstrap_socket& socket, int ranks, memory_segment& control_block, world_events& world,
              coordinator_options options = {}, where at = where::current());
  coordinator(const coordinator&) = delete;
  coordinator& operator=(const coordinator&) = delete;

  /// `child`, a child of this process, is to be `rank`: its end is seen also if it never joins, and how it ended is
  /// known. The coordinator reaps it.
  void expect(int rank, pid_t child);

  /// Serves until every rank is over: joined, or expected, and its process gone.
  void run();
  /// Serves until all have joined: true; or all that have not are gone, or the deadline has passed: false.
  [[nodiscard]] bool serve_until_joined(time_point until);
  /// Waits for an event, until `until` at the longest, and serves it.
  void step(time_point until);

  [[nodiscard]] bool all_joined() const noexcept;
  [[nodiscard]] bool all_over() const noexcept;
  /// False where the rank's process is gone or not known.
  bool send_signal(int rank, int number) const noexcept;
  [[nodiscard]] const rank_record& about(int rank) const { return records_.at(static_cast<std::size_t>(rank)); }
  [[nodiscard]] std::size_t regions() const noexcept { return regions_.size(); }
  /// Ranks of the present epoch.
  [[nodiscard]] const std::vector<int>& members() const noexcept { return members_; }

 private:
  enum class source : std::uint8_t { listener, pending, connection, child, member };
  struct tag {
    source what;
    std::size_t index;
  };
  struct arbiter;

  [[nodiscard]] rank_record& record(int rank) { return records_.at(static_cast<std::size_t>(rank)); }

  void gather_poll_entries();
  [[nodiscard]] time_point next_deadline(time_point until) const noexcept;
  void serve(tag from);

  void admit(handshake::joined_process from);
  void reply(rank_record& to, const message& what, int file = -1);
  void read_messages(int rank, std::size_t most);
  void handle(int rank, rank_record& from, received got);

  void on_child_exit(int rank);
  void on_member_exit(int rank);
  void close_rank(int rank, rank_record& from);

  void refuse_late(time_point now);
  [[nodiscard]] bool find_dead(const std::vector<int>& ranks);
  [[nodiscard]] bool renew(const std::vector<int>& survivors);
  void tell(const std::vector<int>& survivors);
  void kill_stalled();

  bootstrap_socket* socket_;
  memory_segment* control_;
  world_events* world_;
  const time_source* clock_;
  where at_;
  handshake handshake_;
  stall_watch stalls_;
  std::vector<rank_record> records_;
  std::vector<int> members_;
  std::vector<int> survivors_;       // while they agree
  memory_segment* fresh_ = nullptr;  // the control block of the next epoch
  std::uint64_t epoch_ = 0;
  region_store regions_;
  std::vector<pollfd> entries_;  // the coordinator's, in the order of tags_, then the world's
  std::vector<tag> tags_;
};

}  // namespace host
}  // namespace belay::inline BELAY_ABI

#if !defined(BELAY_SEPARATE_COMPILATION)
#include "belay/backend/host/bootstrap/coordinator.ipp"  // IWYU pragma: export
#endif
