// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Transfers under way: a fixed number of slots, and for each transfer a handle that learns what became of it. A slot is
// free as soon as its bytes have moved, so a handle that nobody waits for holds no one up. A ring of calls that the
// kernel makes moves them, or one thread.
// IWYU pragma: private, include "belay/device/tier_file.hpp"
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "belay/core/config.hpp"
#include "belay/core/where.hpp"
#include "belay/device/tier_file/error.hpp"
#include "belay/device/tier_file/system_calls.hpp"
#include "belay/device/tier_file/transfer_ring.hpp"

namespace belay::inline BELAY_ABI {

class file_transfers;

/// One started read or write; move-only. Its memory belongs to it until `wait` returns, or it is destroyed: that waits
/// too, and drops an error that nobody waited for. Used by one thread at a time. It may outlive its file.
class file_transfer {
 public:
  /// Nothing under way: for a transfer to be moved into.
  file_transfer() noexcept = default;
  file_transfer(file_transfer&& other) noexcept { take(other); }
  /// Waits for what this handle held before.
  file_transfer& operator=(file_transfer&& other) noexcept;
  ~file_transfer() { settle(); }

  /// Returns when all bytes have moved; after that, at once. Throws tier_file_error where they could not; this is about
  /// this transfer alone.
  void wait(where at = where::current());

  /// True when `wait` would not block.
  [[nodiscard]] inline bool ready();

 private:
  friend class file_transfers;
  file_transfer(file_transfers& owner, std::shared_ptr<const std::string> directory, const transfer_call& call);

  void settle() noexcept;
  void take(file_transfer& other) noexcept;
  void copy_outcome(const file_transfer& other) noexcept {
    fault_ = other.fault_;
    code_ = other.code_;
    done_ = other.done_;
  }

  file_transfers* owner_ = nullptr;  // only looked at while under way
  std::shared_ptr<const std::string> directory_;
  transfer_call call_;  // all of it
  std::size_t slot_ = 0;
  // Written by the owner, under its mutex, before it says that the transfer is over.
  tier_file_fault fault_ = tier_file_fault::none;
  int code_ = 0;
  std::size_t done_ = 0;
  std::atomic<bool> under_way_{false};
};

/// The part that both ways to transfer share: slots, and what follows from the result of a call. Thread-safe.
class file_transfers {
 public:
  /// `granularity` is the least that a block device takes, in bytes, or 1 where the file is buffered.
  file_transfers(std::string directory, int descriptor, std::size_t slot_count, std::size_t granularity)
      : directory_(std::make_shared<const std::string>(std::move(directory))),
        descriptor_(descriptor),
        granularity_(granularity),
        slots_(slot_count) {
    free_.reserve(slot_count);
    for (std::size_t i = slot_count; i-- > 0;) free_.push_back(i);
  }
  file_transfers(const file_transfers&) = delete;
  file_transfers& operator=(const file_transfers&) = delete;
  virtual ~file_transfers() = default;

  [[nodiscard]] file_transfer start(tier_file_operation operation, std::uint64_t offset, std::byte* address,
                                    std::size_t bytes);

  [[nodiscard]] std::size_t slot_count() const noexcept { return slots_.size(); }
  [[nodiscard]] std::uint64_t waits_for_slot() const noexcept { return waits_.load(std::memory_order_relaxed); }

 protected:
  using guard = std::unique_lock<std::mutex>;

  // Makes the next call of a slot, whose result is later given to `finish_call`.
  virtual void begin_call(std::size_t slot) noexcept = 0;
  // Blocks until some transfer may be over; unlocks meanwhile.
  virtual void await_change(guard& lock) noexcept = 0;
  // Looks whether some are.
  virtual void poll(guard&) noexcept {}

  [[nodiscard]] transfer_call next_call(std::size_t index) const noexcept;

  // Takes what a call has returned: bytes, or an error number below 0. True where another one is to be made.
  [[nodiscard]] bool finish_call(std::size_t index, std::int64_t result) noexcept;

  [[nodiscard]] bool finish(std::size_t index, tier_file_fault fault, int code) noexcept;

  // For destructors of derived classes: nothing may write to a caller's memory any more.
  void drain() noexcept;

  mutable std::mutex mutex_;
  std::condition_variable changed_;

 private:
  friend class file_transfer;

  struct progress {
    file_transfer* transfer = nullptr;
    std::size_t done = 0;
  };

  void admit(file_transfer& transfer);
  void await(const file_transfer& transfer) noexcept;
  [[nodiscard]] bool over(const file_transfer& transfer) noexcept;
  void move(file_transfer& from, file_transfer& to) noexcept {
    const guard lock(mutex_);
    to.slot_ = from.slot_;
    to.copy_outcome(from);
    const bool under_way = from.under_way_.load(std::memory_order_relaxed);
    if (under_way) slots_[to.slot_].transfer = &to;
    to.under_way_.store(under_way, std::memory_order_relaxed);
    from.under_way_.store(false, std::memory_order_relaxed);
  }

  std::shared_ptr<const std::string> directory_;
  int descriptor_;
  std::size_t granularity_;
  std::vector<progress> slots_;
  std::vector<std::size_t> free_;
  std::atomic<std::uint64_t> waits_{0};
};

inline bool file_transfer::ready() { return !under_way_.load(std::memory_order_acquire) || owner_->over(*this); }

/// Transfers by a ring of calls that the kernel makes. There is no thread: who waits takes what is over, for all.
template <transfer_ring Ring>
class ring_transfers final : public file_transfers {
 public:
  /// `refusal()` says why there is no ring, or is "".
  ring_transfers(std::string directory, int descriptor, std::size_t slot_count, std::size_t granularity)
      : file_transfers(std::move(directory), descriptor, slot_count, granularity),
        refusal_(ring_.open(static_cast<unsigned>(slot_count))) {}
  ~ring_transfers() override { drain(); }

  [[nodiscard]] const std::string& refusal() const noexcept { return refusal_; }

 private:
  void begin_call(std::size_t slot) noexcept override {
    const int refused = ring_.submit(next_call(slot), slot);
    if (refused != 0) static_cast<void>(finish(slot, fault_of(refused), refused));
  }
  // One thread waits for the kernel, the others for that one.
  void await_change(guard& lock) noexcept override {
    if (taking_) return changed_.wait(lock);
    taking_ = true;
    lock.unlock();
    const transfer_completion over = ring_.wait();
    lock.lock();
    taking_ = false;
    take(over);
    changed_.notify_all();  // this thread may go, also where nothing has ended: another one is to wait for the kernel
  }
  void poll(guard&) noexcept override {
    transfer_completion over;
    while (!taking_ && ring_.poll(over)) take(over);
  }

  void take(const transfer_completion& over) noexcept {
    const auto slot = static_cast<std::size_t>(over.tag);
    if (finish_call(slot, over.result)) begin_call(slot);
  }

  Ring ring_;
  bool taking_ = false;
  std::string refusal_;
};

/// Transfers by pread and pwrite on one thread, in the order in which they were started.
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

#if !defined(BELAY_SEPARATE_COMPILATION)
#include "belay/device/tier_file/transfer.ipp"  // IWYU pragma: export
#endif
