// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The library's own small operations without what makes them safe: no fingerprint is compared, no recorder written, no
// deadline kept. Beside these the library shows what the three cost together.
#pragma once

#include <cstddef>
#include <numeric>
#include <optional>
#include <span>
#include <vector>

#include "belay/backend/host/collectives.hpp"
#include "belay/backend/host/control.hpp"
#include "belay/backend/host/group_memory.hpp"
#include "belay/backend/host/health.hpp"
#include "belay/backend/host/meeting.hpp"
#include "belay/backend/host/reach.hpp"
#include "collectives/operation.hpp"

namespace bench {

class bare {
 public:
  [[nodiscard]] static bool can(op what, std::size_t bytes) noexcept {
    return what == op::barrier || (what == op::all_reduce && bytes <= belay::host::line_bytes);
  }
  [[nodiscard]] static std::size_t bytes(int ranks) noexcept {
    return belay::host::control::bytes_for(shape(ranks)) + belay::host::group_memory::bytes_for(ranks);
  }

  /// `memory` of `bytes(ranks)` is zero at first and seen by all ranks, as by processes.
  bare(std::byte* memory, int rank, int ranks)
      : members_(static_cast<std::size_t>(ranks)),
        health_(belay::host::control::make(memory, shape(ranks))),  // all write the same
        reach_(belay::host::address_space::several) {
    std::iota(members_.begin(), members_.end(), 0);
    const belay::host::group_memory places(memory + belay::host::control::bytes_for(shape(ranks)), ranks);
    meeting_.emplace(health_, reach_, members_, belay::host::lane::caller, 0U, rank, places);
  }
  bare(const bare&) = delete;
  bare& operator=(const bare&) = delete;

  void barrier() { belay::host::barrier(here(), belay::where::current()); }
  void all_reduce(std::span<const float> in, std::span<float> out) {
    belay::host::all_reduce<float>(here(), in, out, belay::sum, belay::where::current());
  }

 private:
  using meeting = belay::host::basic_meeting<belay::host::unguarded>;

  [[nodiscard]] static belay::host::control_shape shape(int ranks) noexcept {
    belay::host::control_shape out;
    out.ranks = ranks;
    out.space = belay::host::address_space::several;
    return out;
  }
  [[nodiscard]] belay::host::basic_party<meeting> here() noexcept { return {&*meeting_, {}}; }

  std::vector<int> members_;
  belay::host::health health_;
  belay::host::reach reach_;
  std::optional<meeting> meeting_;
};

}  // namespace bench
