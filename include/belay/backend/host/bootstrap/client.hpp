// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A rank's connection to the coordinator: how its process joins the world, gets memory that all share, and leaves.
// IWYU pragma: private, include "belay/backend/host.hpp"
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "belay/backend/host/bootstrap/messages.hpp"
#include "belay/backend/host/memory/memory_segment.hpp"
#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/policies.hpp"
#include "belay/core/where.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

/// A joined process. All calls may be made from several threads; each ends by its deadline. They throw `comm_error`:
/// `timeout`, or `peer_failed` where the coordinator refuses or is gone, naming this rank, the call and the bytes. The
/// destructor only closes: the coordinator then counts this rank as one that left without a goodbye. In a forked child
/// requests throw usage_error.
class client {
 public:
  struct region {
    std::uint64_t id = 0;
    memory_segment memory;
  };
  /// The world after a shrink.
  struct renewed {
    int rank = 0;              // this one's, in the new epoch
    std::vector<int> members;  // the new ranks' numbers at the start, in order
    std::uint64_t epoch = 0;   // 0 at the start
    memory_segment control_block;
  };

  /// Joins as `rank` of `size`. `usage_error` for a rank that is none; otherwise as every call. Deadlines of this and
  /// later calls are times by `clock`, or by the machine's where it is null.
  [[nodiscard]] static client enter(const std::string& path, const token& secret, int rank, int size, time_point until,
                                    where at = where::current(), const time_source* clock = nullptr);

  /// The token that a launcher wrote to a pipe; reads and closes it. Throws `file_error`, at the deadline too: the
  /// launcher writes before it starts the rank.
  [[nodiscard]] static token token_from_descriptor(int number, time_point until, where at = where::current(),
                                                   const time_source* clock = nullptr);

  client(client&&) noexcept;
  ~client();

  /// The numbers given to `enter`.
  [[nodiscard]] int rank() const noexcept { return rank_; }
  [[nodiscard]] int size() const noexcept { return size_; }
  /// The control block's segment got at `enter`.
  [[nodiscard]] memory_segment& control_block() noexcept;
  /// The clock of its deadlines, as given to `enter`.
  [[nodiscard]] const time_source* time() const noexcept { return clock_; }
  /// Readable when the coordinator is gone.
  [[nodiscard]] int fd() const noexcept;

  /// New memory, which the coordinator keeps until all ranks that have it dropped it or are gone; peers attach it by
  /// its number. Its pages are reserved by this process, near the core it runs on. `budget_error` where there is too
  /// little.
  [[nodiscard]] region make_region(std::size_t bytes, time_point until, where at = where::current());
  /// A region that a peer made.
  [[nodiscard]] memory_segment attach_region(std::uint64_t id, time_point until, where at = where::current());
  /// Gives one back; a mapping stays until its segment object goes.
  void drop_region(std::uint64_t id, time_point until, where at = where::current());

  /// The last request; returns when the coordinator has it. Bodies up to 256 MiB.
  void goodbye(const exit_message& last, time_point until, where at = where::current());

  /// Collective among the ranks that are left: returns when each other rank has asked too, said goodbye, or is gone.
  /// One that is stopped beyond the coordinator's stall limit is killed. At the deadline the error names the missing.
  [[nodiscard]] renewed shrink(time_point until, where at = where::current());

 private:
  struct request;
  struct shared;
  class request_lock;

  client(int rank, int size, const time_source* clock);

  [[nodiscard]] connection connect(const std::string& path, const request& from) const;
  [[nodiscard]] received next(const request& from);
  [[nodiscard]] received ask(message& wish, message_kind expected, const request& from, int file = -1);
  [[nodiscard]] memory_segment take_segment(received& got, const request& from) const;
  void give_back(const message& late, const request& from);
  [[noreturn]] void fail(comm_fault fault, const std::string& words, const request& from) const;
  [[noreturn]] void throw_refusal(const message& no, const request& from) const;

  int rank_;
  int size_;
  const time_source* clock_;
  pid_t process_;
  std::unique_ptr<shared> state_;
};

}  // namespace host
}  // namespace belay::inline BELAY_ABI

#if !defined(BELAY_SEPARATE_COMPILATION)
#include "belay/backend/host/bootstrap/client.ipp"  // IWYU pragma: export
#endif
