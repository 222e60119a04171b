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

/// What multiplies 16 x 16 elements of bf16 by a warp, without one: its first lane does all.
struct host_fragment {
  float sums[16][16];

  void clear(unsigned lane) {
    if (lane % 32 == 0)
      for (auto& row : sums) std::fill_n(row, 16, 0.0F);
  }
  template <class T>
  void add(unsigned lane, const T* a, std::size_t a_stride, const T* b, std::size_t b_stride) {
    if (lane % 32 != 0) return;
    for (std::size_t i = 0; i < 16; ++i)
      for (std::size_t j = 0; j < 16; ++j)
        for (std::size_t k = 0; k < 16; ++k)
          sums[i][j] += static_cast<float>(a[i * a_stride + k]) * static_cast<float>(b[k * b_stride + j]);
  }
  void store(unsigned lane, float* to, std::size_t stride) const {
    if (lane % 32 == 0)
      for (std::size_t i = 0; i < 16; ++i) std::copy_n(sums[i], 16, to + i * stride);
  }
};

}  // namespace fakes
