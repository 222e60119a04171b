// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The state of the machine: the round trip of a cache line between two ranks, and how much more two cores copy than
// one. Taken before and after every sample; samples between which it changed are dropped.
#pragma once

#include <sys/mman.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <new>

#include "belay/core/copy.hpp"
#include "collectives/scoreboard.hpp"

namespace bench {

[[nodiscard]] inline double now_us() noexcept {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// Private memory in huge pages where there are some, filled.
class private_pages {
 public:
  explicit private_pages(std::size_t bytes) : bytes_((bytes + huge - 1) / huge * huge + huge) {
    memory_ = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory_ == MAP_FAILED) throw std::bad_alloc();
    first_ = static_cast<std::byte*>(memory_);
    first_ += (huge - reinterpret_cast<std::uintptr_t>(first_) % huge) % huge;
    ::madvise(first_, bytes_ - huge, MADV_HUGEPAGE);
    for (std::size_t i = 0; i < bytes; i += 64) first_[i] = std::byte{1};
  }
  private_pages(const private_pages&) = delete;
  private_pages& operator=(const private_pages&) = delete;
  ~private_pages() { ::munmap(memory_, bytes_); }

  [[nodiscard]] std::byte* data() const noexcept { return first_; }

 private:
  static constexpr std::size_t huge = std::size_t{2} << 20;
  std::size_t bytes_;
  void* memory_ = nullptr;
  std::byte* first_ = nullptr;
};

struct machine_state {
  double round_trip_us = 0;  // 0: not known, as where ranks outnumber cores
  double copy_scaling = 0;   // bytes of all ranks at once by bytes of one alone
};

class state_probe {
 public:
  /// `copy_bytes`: of each copy, 0: scaling is not probed.
  explicit state_probe(scoreboard& ranks, std::size_t copy_bytes)
      : scoreboard_(&ranks), bytes_(copy_bytes), memory_(copy_bytes == 0 ? 64 : 2 * room) {}

  [[nodiscard]] machine_state operator()() {
    machine_state out;
    if (scoreboard_->how() == variants::give_core_away || scoreboard_->ranks() < 2) return out;
    scoreboard_->align();
    out.round_trip_us = scoreboard_->round_trip(500);
    if (bytes_ > 0) {
      const double together = timed_copy(true);
      const double alone = timed_copy(scoreboard_->rank() == 0);
      out.copy_scaling = static_cast<double>(scoreboard_->ranks()) * alone / together;
    }
    return out;
  }

 private:
  static constexpr std::size_t room = std::size_t{32} << 20;

  // Non-temporal and from an address that moves on, so that memory is what is measured.
  [[nodiscard]] double timed_copy(bool takes_part) {
    next_ = next_ + 2 * bytes_ > room ? 0 : next_ + bytes_;
    scoreboard_->align();
    const double start = now_us();
    if (takes_part) {
      belay::copy_bytes(memory_.data() + room + next_, memory_.data() + next_, bytes_,
                        belay::memory_access::non_temporal);
    }
    return scoreboard_->largest(takes_part ? now_us() - start : 0);
  }

  scoreboard* scoreboard_;
  std::size_t bytes_;
  std::size_t next_ = 0;
  private_pages memory_;
};

inline double scoreboard::round_trip(int trips) {
  if (ranks_ < 2) return 0;
  std::atomic<std::uint64_t>& ball = lines_[2 * static_cast<std::size_t>(ranks_)].flag;
  const double start = now_us();
  if (rank_ < 2) {
    const auto mine = static_cast<std::uint64_t>(rank_);
    for (int i = 0; i < trips; ++i) {
      const std::uint64_t serve = 2 * ++trips_;
      if (mine == 0) ball.store(serve, std::memory_order_release);
      while (ball.load(std::memory_order_acquire) != serve + 1 - mine) {
      }
      if (mine == 1) ball.store(serve + 1, std::memory_order_release);
    }
  }
  return largest(rank_ == 0 ? (now_us() - start) / trips : 0);
}

}  // namespace bench
