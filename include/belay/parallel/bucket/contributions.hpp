// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// One bit for every (parameter, micro-batch) of a step: a gradient is complete when every bit was set
// exactly once. A count alone would let a double contribution hide a missing one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/where.hpp"

namespace belay::inline BELAY_ABI {

class contribution_map {
 public:
  contribution_map(std::size_t parameters, std::size_t max_micro_batches)
      : words_((max_micro_batches + 63) / 64),
        max_micro_batches_(max_micro_batches),
        bits_(parameters * words_),
        counts_(parameters) {}

  /// Forgets the last step; allocates nothing.
  void begin(std::size_t micro_batches, where at) {
    if (micro_batches > max_micro_batches_)
      throw usage_error("a step of " + std::to_string(micro_batches) + " micro-batches; the buckets were made for " +
                            std::to_string(max_micro_batches_),
                        at);
    micro_batches_ = micro_batches;
    for (std::uint64_t& word : bits_) word = 0;
    for (std::size_t& count : counts_) count = 0;
    missing_ = counts_.size() * micro_batches;
    wrong_ = 0;
  }

  /// False if it was marked before. Both indices are in range.
  [[nodiscard]] bool mark(std::size_t parameter, std::size_t micro_batch) noexcept {
    std::uint64_t& word = bits_[parameter * words_ + micro_batch / 64];
    const std::uint64_t bit = std::uint64_t{1} << (micro_batch % 64);
    if ((word & bit) != 0) return false;
    word |= bit;
    ++counts_[parameter];
    --missing_;
    return true;
  }
  [[nodiscard]] bool has(std::size_t parameter, std::size_t micro_batch) const noexcept {
    return (bits_[parameter * words_ + micro_batch / 64] >> (micro_batch % 64) & 1) != 0;
  }

  /// Remembers a contribution that was made twice or out of range.
  void count_wrong() noexcept { ++wrong_; }

  [[nodiscard]] std::size_t count(std::size_t parameter) const noexcept { return counts_[parameter]; }
  [[nodiscard]] std::size_t micro_batches() const noexcept { return micro_batches_; }
  [[nodiscard]] std::size_t wrong() const noexcept { return wrong_; }
  [[nodiscard]] bool complete() const noexcept { return missing_ == 0 && wrong_ == 0; }

 private:
  std::size_t words_;
  std::size_t max_micro_batches_;
  std::size_t micro_batches_ = 0;
  std::size_t missing_ = 0;
  std::size_t wrong_ = 0;
  std::vector<std::uint64_t> bits_;
  std::vector<std::size_t> counts_;
};

}  // namespace belay::inline BELAY_ABI
