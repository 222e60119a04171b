// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A group of ranks of this machine: the handle that user code calls.
//
//   belay::host::world{4}.run([](belay::host::rank& rank) {
//     std::vector<float> loss(1, static_cast<float>(rank.number()));
//     rank.world().all_reduce(std::span(loss), belay::sum);  // 6 on every rank
//   });
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>

#include "belay/backend/host/collectives/call.hpp"
#include "belay/backend/host/failure/world_status.hpp"
#include "belay/backend/host/memory/address_map.hpp"
#include "belay/backend/host/memory/region_provider.hpp"
#include "belay/backend/host/p2p/p2p_transport.hpp"
#include "belay/backend/host/rendezvous/group_state.hpp"
#include "belay/comm/async_stream.hpp"
#include "belay/comm/basic_group.hpp"
#include "belay/comm/communicator.hpp"
#include "belay/comm/fingerprint.hpp"
#include "belay/comm/op_call.hpp"
#include "belay/comm/symmetric_region.hpp"
#include "belay/core/bounds.hpp"
#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/where.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

/// The calls that a group runs: the functions in collectives/ and the exchange of its lane.
struct collectives {
  using world_type = world_status;
  using group_state = host::group_state;
  using duration = world_status::clock::duration;

  /// Runs an operation that was checked, in one lane of the group; it waits for peers no longer than `limit`.
  static void run(group_state& state, lane which, duration limit, const op_call& call) {
    if (call.what() == operation::exchange) return state.transport(which).run(call.exchanged(), limit, call.at);
    run_collective({&state.collective_endpoint(which), limit}, call);
  }
  /// Tells ranks that call in the caller's lane that this one has started `what`.
  static void tell_first_start(group_state& state, operation what, const where& at) {
    state.collective_endpoint(lane::caller).tell_first_start(what, at);
  }
};

using async_stream = belay::async_stream<world_status>;

/// See `basic_group`, and `group_operations` for what it can do.
class group : public basic_group<group, collectives> {
 public:
  /// The group's promises: sums are added in rank order, and parts may differ in size.
  static constexpr bool sums_in_rank_order = true;
  static constexpr bool has_varying_counts = true;

  using basic_group::basic_group;

  /// The variant of this rank's last blocking operation that was not eager. `automatic` means that the static rules
  /// chose.
  [[nodiscard]] variant last_variant() const noexcept {
    return alone() ? variant{} : state().collective_endpoint(state().collectives().blocking()).chosen();
  }

  /// Memory of `bytes` on every rank, mapped on all; collective, the same size everywhere.
  [[nodiscard]] symmetric_region make_symmetric(std::size_t bytes, where at = where::current()) const {
    const blocking_call call(*this, operation::make_symmetric, {}, at);
    if (alone()) return symmetric_region::map(1, bytes, backing::memory, at);
    const lane meets = lane_of_call(operation::make_symmetric, at);
    const turn mine(*this, meets);
    const collective_context me{&state().collective_endpoint(meets), limit()};
    const fingerprint print{operation::make_symmetric, reduction::none, {element_code::opaque, 1}, -1, bytes, 0};
    me.endpoint->enter_rendezvous(call_buffers{.print = print}, me.limit, at);  // all want the same
    me.endpoint->exit_rendezvous();
    region_provider& source = *state().regions();
    symmetric_region out;
    region_provider::ticket shared;
    if (me.rank() == 0) {
      try {
        out = source.make(me.size(), bytes, at);
        shared = source.ticket_for(out);
      } catch (const budget_error& refused) {
        shared = {0, greater_of<std::uint64_t>(refused.requested_bytes(), 1), refused.available_bytes()};
      }
    }
    const element_code ticket{element_code::opaque, sizeof shared};
    const fingerprint sharing{operation::make_symmetric, reduction::none, ticket, 0, 1, 0};
    me.endpoint->eager_round(algorithm::flag_line, sharing, &shared, sizeof shared, me.limit, at);
    if (me.rank() != 0) std::memcpy(&shared, me.endpoint->payloads()(0), sizeof shared);
    if (shared.bytes > 0) throw budget_error("symmetric memory", shared.bytes, shared.available, at);
    if (me.rank() != 0) out = source.open(shared, me.size(), bytes, at);
    host::barrier(me, at);  // until then the first rank keeps it for all
    source.share(out, rank_set::of(members(), state().id()));
    return out;
  }
};

}  // namespace host

#if defined(BELAY_SEPARATE_COMPILATION)
extern template class async_stream<host::world_status>;
#endif

}  // namespace belay::inline BELAY_ABI
