// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Runs a kernel of blocks whose lanes meet within a phase: each lane is a fiber of this thread, and runs until it waits
// for its warp. `tensor_fibers` is what tensor cores and asynchronous copies do, written out: a copy arrives when it is
// waited for, and not before.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <vector>

#include "belay/backend/cuda/tensor_warp.hpp"
#include "belay/core/dtype.hpp"
#include "belay/kernel/team.hpp"
#include "fakes/fibers.hpp"

namespace fakes {

/// The `tensor_unit` of lanes that are fibers.
struct tensor_fibers {
  using pair = belay::cuda::bf16_pair;
  using block_address = belay::bf16*;

  static void load(pair (&to)[4], const belay::bf16* row) { load_matrices(to, row, 1, 0); }
  static void load_transposed(pair (&to)[4], const belay::bf16* row) { load_matrices(to, row, 0, 1); }

  static void multiply(float (&sums)[4], const pair (&a)[4], pair b0, pair b1) {
    const auto& all = fibers::exchanged({a[0], a[1], a[2], a[3], b0, b1});
    const unsigned lane = fibers::lane_of_warp();
    for (unsigned s = 0; s < 4; ++s) {
      const unsigned row = lane / 4 + 8 * (s / 2), column = 2 * (lane % 4) + s % 2;
      for (unsigned k = 0; k < 16; k += 2) {
        const unsigned place = k % 8 / 2, high = k / 8;
        const std::uint64_t left = all[row % 8 * 4 + place][row / 8 + 2 * high];
        const std::uint64_t right = all[column * 4 + place][4 + high];
        sums[s] += half(left, 0) * half(right, 0);
        sums[s] += half(left, 1) * half(right, 1);
      }
    }
  }

  static void copy(belay::bf16* to, const belay::bf16* from, unsigned count) {
    aligned(to);
    aligned(from);
    std::memset(static_cast<void*>(to), 0xff, 16);  // neither what was there nor what comes
    fibers::copies().back().push_back({to, from, count});
  }
  static void close_group() { fibers::copies().emplace_back(); }
  template <int Others>
  static void wait_but() {
    auto& groups = fibers::copies();
    for (; groups.size() > Others + 1; groups.pop_front())
      for (const fibers::copy& each : groups.front())
        for (unsigned i = 0; i < 8; ++i) each.to[i] = i < each.count ? each.from[i] : belay::bf16(0.0F);
  }

  static void store(belay::bf16* to, const pair (&from)[4]) {
    aligned(to);
    std::memcpy(static_cast<void*>(to), from, sizeof from);
  }
  static void put(belay::bf16* to, const pair (&from)[4]) { store(to, from); }
  static void store(belay::bf16* to, pair from) { std::memcpy(static_cast<void*>(to), &from, sizeof from); }

  /// The number that lane `other` of the warp gives.
  static float from(unsigned other, float value) {
    std::uint32_t bits = 0;
    std::memcpy(&bits, &value, sizeof bits);
    bits = static_cast<std::uint32_t>(fibers::exchanged({bits})[other][0]);
    std::memcpy(&value, &bits, sizeof bits);
    return value;
  }
  static pair rounded(float first, float second) {
    return belay::bf16(first).bits() | static_cast<pair>(belay::bf16(second).bits()) << 16;
  }
  static float larger(float x, float y) { return std::fmax(x, y); }
  static float power_of_two(float x) { return std::exp2(x); }

 private:
  static void aligned(const void* address) {
    if (reinterpret_cast<std::uintptr_t>(address) % 16 != 0) throw std::logic_error("an address off 16 bytes");
  }
  static float half(std::uint64_t word, unsigned which) {
    const auto bits = static_cast<std::uint32_t>(word >> (16 * which)) << 16;
    float value = 0;
    std::memcpy(&value, &bits, sizeof value);
    return value;
  }
  // Elements of a matrix are `along` apart in the lane's row of it, or `across` rows.
  static void load_matrices(pair (&to)[4], const belay::bf16* row, unsigned along, unsigned across) {
    aligned(row);
    const auto& rows = fibers::exchanged({reinterpret_cast<std::uintptr_t>(row)});
    const unsigned lane = fibers::lane_of_warp();
    for (unsigned m = 0; m < 4; ++m) {
      to[m] = 0;
      for (unsigned e = 0; e < 2; ++e) {
        const unsigned first = lane / 4, second = 2 * (lane % 4) + e;
        const auto* memory = reinterpret_cast<const belay::bf16*>(rows[8 * m + first * along + second * across][0]);
        std::uint16_t bits = 0;
        std::memcpy(&bits, memory + second * along + first * across, sizeof bits);
        to[m] |= static_cast<pair>(bits) << (16 * e);
      }
    }
  }
};
static_assert(belay::cuda::tensor_unit<tensor_fibers>);

/// The lanes of a block as fibers, a phase after the other. What nobody has written is NaN.
template <belay::kernel::blocked K>
class fiber_block {
 public:
  using lane_type = typename K::lane_type;

  explicit fiber_block(std::uint64_t seed)
      : lanes_(K::lanes, seed), shared_(std::make_unique<typename K::shared_type>()), own_(K::lanes) {}
  void begin() {
    std::memset(static_cast<void*>(shared_.get()), 0xff, sizeof(typename K::shared_type));
    for (lane_type& each : own_) std::memset(static_cast<void*>(&each), 0xff, sizeof(lane_type));
  }
  [[nodiscard]] typename K::shared_type& shared() noexcept { return *shared_; }
  template <class F>
  void phase(const F& f) {
    lanes_.run([&](unsigned lane) { f(lane, own_[lane]); });
  }

 private:
  fibers lanes_;
  std::unique_ptr<typename K::shared_type> shared_;
  std::vector<lane_type> own_;
};

/// Blocks 0 ... count - 1, last to first where the seed is odd.
template <belay::kernel::blocked K>
void for_each_block(std::size_t count, const K& k, std::uint64_t seed) {
  fiber_block<K> block(seed);
  for (std::size_t i = 0; i < count; ++i) {
    block.begin();
    k(block, seed % 2 == 0 ? i : count - 1 - i);
  }
}

}  // namespace fakes
