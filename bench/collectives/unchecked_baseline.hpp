// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The library's own small operations without what makes them safe: no fingerprint is compared, no recorder written, no
// deadline kept. Beside these the library shows what the three cost together.
#pragma once

#include <cstddef>
#include <memory>
#include <numeric>
#include <span>
#include <type_traits>
#include <vector>

#include "belay/backend/host/collectives.hpp"
#include "belay/backend/host/failure/world_status.hpp"
#include "belay/backend/host/memory/address_map.hpp"
#include "belay/backend/host/memory/control_block.hpp"
#include "belay/backend/host/rendezvous/collective_endpoint.hpp"
#include "belay/backend/host/rendezvous/group_layout.hpp"
#include "belay/comm/communicator.hpp"
#include "belay/core/where.hpp"
#include "collectives/operation.hpp"

namespace bench {

/// A group as the library's handle is one. Copies are the same one.
class unchecked_baseline {
 public:
  [[nodiscard]] static bool can(op what, std::size_t bytes) noexcept {
    return what == op::barrier || (what == op::all_reduce && bytes <= belay::host::flag_payload_bytes);
  }
  [[nodiscard]] static std::size_t bytes(int ranks) noexcept {
    return belay::host::control_block::bytes_for(shape(ranks)) + belay::host::group_layout::bytes_for(ranks);
  }

  /// `memory` of `bytes(ranks)` is zero at first and seen by all ranks, as by processes.
  unchecked_baseline(std::byte* memory, int rank, int ranks) : state_(std::make_shared<state>(memory, rank, ranks)) {}

  [[nodiscard]] int rank() const noexcept { return state_->endpoint.rank(); }
  [[nodiscard]] int size() const noexcept { return state_->endpoint.size(); }

  void barrier(belay::where at = belay::where::current()) const { belay::host::barrier(here(), at); }
  template <belay::reducible T, belay::reduction_tag Op>
  void all_reduce(std::span<T> inout, Op op, belay::where at = belay::where::current()) const {
    belay::host::all_reduce<T>(here(), inout, inout, op, at);
  }
  template <belay::reducible T, belay::reduction_tag Op>
  void all_reduce(std::span<const std::type_identity_t<T>> in, std::span<T> out, Op op,
                  belay::where at = belay::where::current()) const {
    belay::host::all_reduce<T>(here(), in, out, op, at);
  }

 private:
  using unguarded_endpoint = belay::host::basic_collective_endpoint<belay::host::unguarded>;

  struct state {
    state(std::byte* memory, int rank, int ranks)
        : members(static_cast<std::size_t>(ranks)),
          status(belay::host::control_block::make(memory, shape(ranks))),  // all write the same
          map(belay::host::address_space::several),
          endpoint(status, map, numbered(members), belay::lane::caller, 0U, rank,
                   {memory + belay::host::control_block::bytes_for(shape(ranks)), ranks}) {
      status.shared().header().cores.store(ranks, std::memory_order_relaxed);  // nobody arrives, to tell theirs
    }

    std::vector<int> members;
    belay::host::world_status status;
    belay::host::address_map map;
    unguarded_endpoint endpoint;
  };

  [[nodiscard]] static belay::host::control_shape shape(int ranks) noexcept {
    belay::host::control_shape out;
    out.ranks = ranks;
    out.space = belay::host::address_space::several;
    return out;
  }
  [[nodiscard]] static std::span<const int> numbered(std::vector<int>& members) noexcept {
    std::iota(members.begin(), members.end(), 0);
    return members;
  }
  [[nodiscard]] belay::host::basic_collective_context<unguarded_endpoint> here() const noexcept {
    return {&state_->endpoint, limit_};
  }

  std::shared_ptr<state> state_;
  belay::host::world_status::clock::duration limit_{};
};

static_assert(belay::communicator<unchecked_baseline> && belay::can_all_reduce<unchecked_baseline, float>);

}  // namespace bench
