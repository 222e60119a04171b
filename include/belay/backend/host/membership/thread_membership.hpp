// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Ranks that are threads: where their shared memory is, and how the survivors among them agree. A shrink waits until
// every rank has asked too or has left its body. A rank that does neither within the stall limit is left behind; it
// cannot harm the others, because they go on in memory that it does not know.
// IWYU pragma: private, include "belay/backend/host.hpp"
#pragma once

#include <condition_variable>
#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

#include "belay/backend/host/membership/membership.hpp"
#include "belay/backend/host/options.hpp"
#include "belay/core/config.hpp"
#include "belay/core/where.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

/// Fresh zeroed pages of this process, of which only those that are touched cost memory.
class anonymous_memory {
 public:
  /// Throws `budget_error`.
  explicit anonymous_memory(std::size_t bytes, where at = where::current());
  anonymous_memory(const anonymous_memory&) = delete;
  anonymous_memory& operator=(const anonymous_memory&) = delete;
  ~anonymous_memory();

  [[nodiscard]] std::byte* data() const noexcept { return first_; }

 private:
  std::byte* first_ = nullptr;
  std::size_t bytes_;
};

/// Shared by the threads of a world; outlives them.
class thread_membership final : public membership {
 public:
  thread_membership(int ranks, const world_options& options);

  /// The state of the first epoch.
  [[nodiscard]] control_block first() const;
  /// The first epoch, as the thread of rank `number` sees it.
  [[nodiscard]] epoch_view enter(int number);
  /// After the last rank has left: groups of this world that still exist cannot be called any more.
  void end() noexcept;

  void note_exit(const epoch_view& view) noexcept override;
  [[nodiscard]] epoch_view shrink(const epoch_view& from, world_status::clock::duration limit, where at) override;

 private:
  struct epoch;

  [[nodiscard]] bool all_known(const epoch& now) const;
  void close(epoch& now);
  void begin_epoch(std::vector<int> members);
  [[nodiscard]] epoch_view view_of(const std::shared_ptr<epoch>& which, int number) const;

  world_options options_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<bool> left_;  // by number at the start
  std::vector<std::shared_ptr<epoch>> epochs_;
};

}  // namespace host
}  // namespace belay::inline BELAY_ABI

#if !defined(BELAY_SEPARATE_COMPILATION)
#include "belay/backend/host/membership/thread_membership.ipp"  // IWYU pragma: export
#endif
