// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// In which order a step gathers its layers, and in which the passes of the other phases do. A rehearsal notes it; the
// run follows it, and never changes it: what comes out of order costs one gather that nothing has started early, and is
// counted.
// IWYU pragma: private, include "belay/parallel/gathers.hpp"
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "belay/core/config.hpp"
#include "belay/core/hash.hpp"
#include "belay/step/phase.hpp"

namespace belay::inline BELAY_ABI {

/// How often layers were gathered in the order of the plan, and otherwise.
struct gather_counts {
  std::uint64_t prefetched = 0;  // started before the layer asked
  std::uint64_t in_order = 0;    // as the plan says, but not started before
  std::uint64_t missed = 0;      // not as the plan says
  std::size_t peak_bytes = 0;    // of parameters that were whole, or on their way, at a time
};

/// The gathers of one step or pass, as numbers of layers. Immutable in a run.
class gather_order {
 public:
  static constexpr std::uint32_t nothing = 0xffffffffU;

  gather_order() = default;
  explicit gather_order(std::vector<std::uint32_t> layers) : layers_(std::move(layers)) {}

  void begin() noexcept { at_ = 0; }
  /// What is gathered next, or nothing.
  [[nodiscard]] std::uint32_t next() const noexcept { return at_ < layers_.size() ? layers_[at_] : nothing; }
  /// A layer is gathered: whether it is the next one.
  [[nodiscard]] bool advance(std::uint32_t layer) noexcept {
    if (next() != layer) return false;
    ++at_;
    return true;
  }

  /// For a rehearsal.
  void note(std::uint32_t layer) { layers_.push_back(layer); }
  [[nodiscard]] const std::vector<std::uint32_t>& layers() const noexcept { return layers_; }
  [[nodiscard]] std::uint64_t fingerprint() const noexcept {
    fnv1a hash;
    for (std::uint32_t layer : layers_) hash.add(layer);
    return hash.value();
  }

 private:
  std::vector<std::uint32_t> layers_;
  std::size_t at_ = 0;
};

/// The orders that a rehearsal has noted: of a step, of a pass of evaluation and of one of a rollout.
using gather_plan = std::array<gather_order, phase_count>;

}  // namespace belay::inline BELAY_ABI
