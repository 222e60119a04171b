// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Runs a kernel of blocks on the host: the lanes of each phase one after the other, in an order that a seed draws. What
// nobody has written is NaN.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "belay/kernel/team.hpp"

namespace fakes {

template <belay::kernel::blocked K>
class shuffled_block {
 public:
  using shared_type = typename K::shared_type;
  using lane_type = typename K::lane_type;

  explicit shuffled_block(std::uint64_t seed)
      : random_(seed), shared_(std::make_unique<shared_type>()), own_(K::lanes), order_(K::lanes) {
    std::iota(order_.begin(), order_.end(), 0U);
  }
  void begin() {
    std::memset(static_cast<void*>(shared_.get()), 0xff, sizeof(shared_type));
    for (lane_type& each : own_) std::memset(static_cast<void*>(&each), 0xff, sizeof(lane_type));
  }
  [[nodiscard]] shared_type& shared() noexcept { return *shared_; }
  template <class F>
  void phase(const F& f) {
    std::shuffle(order_.begin(), order_.end(), random_);
    for (const unsigned lane : order_) f(lane, own_[lane]);
  }

 private:
  std::mt19937_64 random_;
  std::unique_ptr<shared_type> shared_;
  std::vector<lane_type> own_;
  std::vector<unsigned> order_;
};

/// Blocks 0 ... count - 1, last to first where the seed is odd.
template <belay::kernel::blocked K>
void for_each_block(std::size_t count, const K& k, std::uint64_t seed) {
  shuffled_block<K> block(seed);
  for (std::size_t i = 0; i < count; ++i) {
    block.begin();
    k(block, seed % 2 == 0 ? i : count - 1 - i);
  }
}

}  // namespace fakes
