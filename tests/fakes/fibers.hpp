// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The lanes of a block on one thread: each is a fiber, which runs until it waits for others.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <numeric>
#include <random>
#include <stdexcept>
#include <vector>

#include "belay/core/dtype.hpp"
#include "fakes/fiber.hpp"

namespace fakes {

/// One block runs on a thread at a time.
class fibers {
 public:
  static constexpr unsigned warp = 32;

  fibers(unsigned lanes, std::uint64_t seed)
      : random_(seed), lanes_(lanes), warps_((lanes + warp - 1) / warp), order_(lanes) {
    std::iota(order_.begin(), order_.end(), 0U);
  }

  /// f(lane) of every lane, in a seeded order.
  template <class F>
  void run(const F& f) {
    running_ = this;
    body_ = [](const void* of, unsigned lane) { (*static_cast<const F*>(of))(lane); };
    argument_ = &f;
    std::shuffle(order_.begin(), order_.end(), random_);
    for (lane_state& each : lanes_) {
      each.stack.restart(&run_lane);
      each.at = nullptr;
      each.ended = false;
    }
    for (std::size_t ended = 0; ended < lanes_.size();) {
      bool moved = false;
      for (const unsigned lane : order_) {
        lane_state& own = lanes_[lane];
        if (own.ended || own.waits()) continue;
        moved = true;
        current_ = lane;
        own.stack.resume(scheduler_);
        if (own.ended) ++ended;
      }
      if (!moved) throw std::logic_error("lanes do not meet at one call");
    }
    running_ = nullptr;
  }

  /// Where `expected` lanes wait for each other, again and again.
  class meeting {
   public:
    explicit meeting(unsigned expected = warp) : expected_(expected) {}
    void arrive_and_wait() {
      lane_state& own = running_->lanes_[running_->current_];
      own.at = this;
      own.until = (arrived_++ / expected_ + 1) * expected_;
      if (own.waits()) running_->scheduler_.resume(own.stack);
    }
    [[nodiscard]] std::uint64_t arrived() const { return arrived_; }

   private:
    std::uint64_t expected_, arrived_ = 0;
  };

  static constexpr std::size_t most_words = 6;
  using words_type = std::array<std::array<std::uint64_t, most_words>, warp>;
  /// The words that all lanes of this one's warp give, by lane; a lane may read them until its next meeting.
  static const words_type& exchanged(const std::array<std::uint64_t, most_words>& mine) {
    const unsigned lane = running_->current_;
    warp_state& its = running_->warps_[lane / warp];
    words_type& words = its.words[its.all.arrived() / warp % 2];  // those of the meeting before may still be read
    words[lane % warp] = mine;
    its.all.arrive_and_wait();
    return words;
  }
  [[nodiscard]] static unsigned lane_of_warp() { return running_->current_ % warp; }

  /// Copies that the running lane has started, group by group; the last is open.
  struct copy {
    belay::bf16* to;
    const belay::bf16* from;
    unsigned count;
  };
  [[nodiscard]] static std::deque<std::vector<copy>>& copies() { return running_->lanes_[running_->current_].copies; }

 private:
  struct lane_state {
    fiber stack;
    std::deque<std::vector<copy>> copies{1};
    const meeting* at = nullptr;
    std::uint64_t until = 0;
    bool ended = true;
    [[nodiscard]] bool waits() const { return at != nullptr && at->arrived() < until; }
  };
  struct warp_state {
    std::array<words_type, 2> words{};
    meeting all;
  };

  static void run_lane() {
    lane_state& own = running_->lanes_[running_->current_];
    running_->body_(running_->argument_, running_->current_);
    own.ended = true;
    running_->scheduler_.resume(own.stack);
  }

  static inline thread_local fibers* running_ = nullptr;
  std::mt19937_64 random_;
  std::vector<lane_state> lanes_;
  std::vector<warp_state> warps_;
  std::vector<unsigned> order_;
  fiber scheduler_;
  unsigned current_ = 0;
  void (*body_)(const void*, unsigned) = nullptr;
  const void* argument_ = nullptr;
};

}  // namespace fakes
