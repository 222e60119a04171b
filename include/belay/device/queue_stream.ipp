// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The thread of a stream.
#pragma once

#include "belay/device/queue_stream.hpp"

namespace belay::inline BELAY_ABI {

BELAY_DECL queue_stream::~queue_stream() {
  {
    const std::lock_guard lock(progress_->mutex);
    ending_ = true;
  }
  progress_->changed.notify_all();
  thread_.join();
}

BELAY_DECL void queue_stream::synchronize() {
  record().synchronize();
  const std::lock_guard lock(progress_->mutex);
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
}

BELAY_DECL void queue_stream::serve() {
  for (std::uint64_t next = 0;; ++next) {
    bool skip = false;
    {
      std::unique_lock lock(progress_->mutex);
      progress_->changed.wait(lock, [&] { return queued_ > next || ending_; });
      if (queued_ == next) return;
      skip = failure_ != nullptr;
    }
    std::exception_ptr thrown;
    if (!skip) {
      try {
        ring_[next % capacity].call(ring_[next % capacity]);
      } catch (...) {
        thrown = std::current_exception();
      }
    }
    {
      const std::lock_guard lock(progress_->mutex);
      if (thrown) failure_ = thrown;
      progress_->done = next + 1;
    }
    progress_->changed.notify_all();
  }
}

}  // namespace belay::inline BELAY_ABI
