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

#include "belay/backend/host/collectives/call.hpp"
#include "belay/backend/host/failure/world_status.hpp"
#include "belay/backend/host/memory/control_block.hpp"
#include "belay/backend/host/rendezvous/collective_endpoint.hpp"
#include "belay/backend/host/rendezvous/group_layout.hpp"
#include "belay/comm/collective.hpp"
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
  unchecked_baseline(std::byte* memory, int rank, int ranks)
      : state_(std::make_shared<endpoint_state>(memory, rank, ranks)) {}

  [[nodiscard]] int rank() const noexcept { return state_->endpoint.rank(); }
  [[nodiscard]] int size() const noexcept { return state_->endpoint.size(); }

  void barrier(belay::where at = belay::where::current()) const {
    state_->endpoint.eager_round(belay::host::algorithm::flag_line,
                                 {belay::operation::barrier, belay::reduction::none, {}, -1, 0, 0}, nullptr, 0, {}, at);
  }
  template <belay::reducible T, belay::reduction_tag Op>
  void all_reduce(std::span<T> inout, Op op, belay::where at = belay::where::current()) const {
    all_reduce<T>(inout, inout, op, at);
  }
  template <belay::reducible T, belay::reduction_tag Op>
  void all_reduce(std::span<const std::type_identity_t<T>> in, std::span<T> out, Op,
                  belay::where at = belay::where::current()) const {
    const auto call = belay::op_call::reduce<belay::operation::all_reduce, Op, T>(in, out, at);
    belay::check_call(call, rank(), size());
    belay::host::all_reduce_eagerly(state_->endpoint, {}, belay::host::algorithm::flag_line, call);
  }

 private:
  using unguarded_endpoint = belay::host::basic_eager_endpoint<belay::host::unguarded>;

  struct endpoint_state {
    endpoint_state(std::byte* memory, int rank, int ranks)
        : members(static_cast<std::size_t>(ranks)),
          status(belay::host::control_block::make(memory, shape(ranks))),  // all write the same
          endpoint(status, numbered(members), belay::lane::caller, 0U, rank,
                   {memory + belay::host::control_block::bytes_for(shape(ranks)), ranks}) {
      status.shared().header().cores.store(ranks, std::memory_order_relaxed);  // no rank arrives, which would say so
    }

    std::vector<int> members;
    belay::host::world_status status;
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
  std::shared_ptr<endpoint_state> state_;
};

static_assert(belay::communicator<unchecked_baseline> && belay::can_all_reduce<unchecked_baseline, float>);

}  // namespace bench
