// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Transfers by a ring of calls that the kernel makes. There is no thread: who waits takes what is over, for all.
// IWYU pragma: private, include "belay/device/tier_file.hpp"
#pragma once

#include <cstddef>
#include <string>
#include <utility>

#include "belay/core/config.hpp"
#include "belay/device/tier_file/transfer.hpp"
#include "belay/device/tier_file/transfer_ring.hpp"

namespace belay::inline BELAY_ABI {

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

}  // namespace belay::inline BELAY_ABI
