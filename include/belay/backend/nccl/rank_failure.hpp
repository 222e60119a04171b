// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The first that a rank's communication over NCCL has failed of. Kept here for all later calls of the rank, and told to
// its control world, whose calls fail by it on all ranks.
// IWYU pragma: private, include "belay/backend/nccl.hpp"
#pragma once

#include <atomic>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "belay/comm/abort_cause.hpp"
#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/where.hpp"
#include "belay/device/stream_watch.hpp"

namespace belay::inline BELAY_ABI::nccl {

/// Of any thread.
class rank_failure {
 public:
  explicit rank_failure(std::shared_ptr<const stream_watch> watch) noexcept : watch_(std::move(watch)) {}

  [[nodiscard]] const stream_watch& watch() const noexcept { return *watch_; }
  [[nodiscard]] const std::shared_ptr<const stream_watch>& shared_watch() const noexcept { return watch_; }

  [[nodiscard]] bool failed() const noexcept { return failed_.load(std::memory_order_acquire); }

  /// A call of NCCL or of the device has failed. The first that is noted stays.
  void note(const backend_error& problem) {
    keep([&] { problem_ = problem.about(); });
    tell(error_kind::backend, problem.what(), problem.at());
  }
  /// An operation has not ended in time. `what` names the rank, the operation and its site.
  void note_timeout(const std::string& what, where at) {
    keep([&] { cause_ = abort_cause{comm_fault::timeout, {watch_->rank()}, what, at.text()}; });
    tell(error_kind::communication, what, at);
  }
  /// The control world has failed: its cause is this rank's.
  void note_world() {
    keep([] {});
  }

  /// Throws the first cause, as an error of `call`; what has failed of a call of NCCL stays the error of that.
  [[noreturn]] void raise(const call_site& call) const {
    std::optional<backend_error::details> problem;
    std::optional<abort_cause> cause;
    {
      const std::lock_guard lock(mutex_);
      problem = problem_;
      cause = cause_;
    }
    if (problem) {
      if (problem->here.line == 0) problem->here = call.at;  // of no operation
      throw backend_error(std::move(*problem));
    }
    if (cause) raise_cause(std::move(*cause), call, 0);
    watch_->raise(call.at);
    std::terminate();  // not reached
  }

 private:
  template <class Keep>
  void keep(const Keep& first) {
    const std::lock_guard lock(mutex_);
    if (failed_.load(std::memory_order_relaxed)) return;
    first();
    failed_.store(true, std::memory_order_release);
  }
  void tell(error_kind thrown, const std::string& what, where at) const { watch_->fail(thrown, what, at); }

  std::shared_ptr<const stream_watch> watch_;
  std::atomic<bool> failed_{false};
  mutable std::mutex mutex_;
  std::optional<backend_error::details> problem_;
  std::optional<abort_cause> cause_;
};

}  // namespace belay::inline BELAY_ABI::nccl
