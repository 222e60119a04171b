// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "conformance/communicator.hpp"
#include "conformance/group_of_device.hpp"
#include "conformance/moves.hpp"
#include "conformance/nccl_ranks.hpp"
#include "conformance/reductions.hpp"

// Through `belay::group`, whose calls are those of the backend's own handle.
using grouped_ranks = conformance::nccl_ranks<belay::group>;

TEST_CASE_TEMPLATE_INVOKE(conf_exchange, grouped_ranks);
TEST_CASE_TEMPLATE_INVOKE(conf_send, grouped_ranks);
TEST_CASE_TEMPLATE_INVOKE(conf_barrier, grouped_ranks);
TEST_CASE_TEMPLATE_INVOKE(conf_groups, grouped_ranks);
TEST_CASE_TEMPLATE_INVOKE(conf_reduce, grouped_ranks);
TEST_CASE_TEMPLATE_INVOKE(conf_reduce_scatter, grouped_ranks);
TEST_CASE_TEMPLATE_INVOKE(conf_nan, grouped_ranks);
TEST_CASE_TEMPLATE_INVOKE(conf_integers, grouped_ranks);
TEST_CASE_TEMPLATE_INVOKE(conf_broadcast, grouped_ranks);
TEST_CASE_TEMPLATE_INVOKE(conf_all_gather, grouped_ranks);
TEST_CASE_TEMPLATE_INVOKE(conf_gather, grouped_ranks);
TEST_CASE_TEMPLATE_INVOKE(conf_all_to_all, grouped_ranks);

TEST_CASE("a group over NCCL: copies, composites, what is refused") {
  for (const int ranks : {2, 3}) {
    const std::vector<bool> held = conformance::nccl_ranks<>::run_bare(ranks, [](auto& rank) {
      const belay::group_traits& traits = belay::group(rank.world()).traits();
      return !traits.meets_on_host && traits.is_captured && traits.device_memory_alone && traits.sums_in_rank_order &&
             !traits.addresses_peers && conformance::group_of_device_holds(rank);
    });
    for (const bool each : held) CHECK(each);
  }
}
