// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Transfers by pread and pwrite on one thread, in the order in which they were started.
// IWYU pragma: private, include "belay/device/tier_file.hpp"
#pragma once

#include <sys/types.h>

#include <cerrno>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "belay/core/config.hpp"
#include "belay/device/tier_file/system_calls.hpp"
#include "belay/device/tier_file/transfer.hpp"

namespace belay::inline BELAY_ABI {

template <tier_file_calls Calls>
class thread_transfers final : public file_transfers {
 public:
  /// Throws std::system_error where the machine has no thread left.
  thread_transfers(std::string directory, int descriptor, std::size_t slot_count, std::size_t granularity)
      : file_transfers(std::move(directory), descriptor, slot_count, granularity),
        queue_(slot_count),
        thread_([this] { serve(); }) {}
  ~thread_transfers() override {
    drain();
    {
      const guard lock(mutex_);
      ending_ = true;
    }
    wake_.notify_one();
    thread_.join();
  }

 private:
  void begin_call(std::size_t slot) noexcept override {
    queue_[(first_ + queued_) % queue_.size()] = slot;
    ++queued_;
    wake_.notify_one();
  }
  void await_change(guard& lock) noexcept override { changed_.wait(lock); }

  void serve() {
    guard lock(mutex_);
    for (;;) {
      wake_.wait(lock, [this] { return ending_ || queued_ != 0; });
      if (queued_ == 0) return;
      const std::size_t slot = queue_[first_];
      first_ = (first_ + 1) % queue_.size();
      --queued_;
      std::int64_t result = 0;
      do {
        const transfer_call call = next_call(slot);
        lock.unlock();
        result = perform(call);
        lock.lock();
      } while (finish_call(slot, result));
    }
  }

  [[nodiscard]] static std::int64_t perform(const transfer_call& call) noexcept {
    const auto at = static_cast<off_t>(call.offset);
    const ssize_t moved = call.operation == tier_file_operation::read
                              ? Calls::read_at(call.descriptor, call.address, call.bytes, at)
                              : Calls::write_at(call.descriptor, call.address, call.bytes, at);
    return moved < 0 ? -std::int64_t{errno} : std::int64_t{moved};
  }

  std::vector<std::size_t> queue_;  // a ring of slots that have not begun
  std::size_t first_ = 0;
  std::size_t queued_ = 0;
  bool ending_ = false;
  std::condition_variable wake_;
  std::thread thread_;  // last: it uses the others
};

}  // namespace belay::inline BELAY_ABI
