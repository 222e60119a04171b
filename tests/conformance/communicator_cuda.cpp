// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "conformance/communicator.hpp"
#include "conformance/communicator_faults.hpp"
#include "conformance/cuda_ranks.hpp"
#include "conformance/group_of_device.hpp"
#include "conformance/moves.hpp"
#include "conformance/reductions.hpp"
#include "conformance/symmetric.hpp"

// Operations through `belay::group`, whose calls are those of the backend's own handle.
using grouped_ranks = conformance::cuda_ranks_of<belay::group>;

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
TEST_CASE_TEMPLATE_INVOKE(conf_throw, conformance::late_cuda_ranks);
TEST_CASE_TEMPLATE_INVOKE(conf_throw_silently, conformance::late_cuda_ranks);
TEST_CASE_TEMPLATE_INVOKE(conf_return, conformance::late_cuda_ranks);
TEST_CASE_TEMPLATE_INVOKE(conf_timeout, conformance::late_cuda_ranks);
TEST_CASE_TEMPLATE_INVOKE(conf_mismatch, conformance::late_cuda_ranks);
TEST_CASE_TEMPLATE_INVOKE(conf_mismatch_rest, conformance::late_cuda_ranks);
TEST_CASE_TEMPLATE_INVOKE(conf_mismatch_pair, conformance::late_cuda_ranks);
TEST_CASE_TEMPLATE_INVOKE(conf_heap, conformance::bare_cuda_ranks);
TEST_CASE_TEMPLATE_INVOKE(conf_heap_signal, conformance::bare_cuda_ranks);
TEST_CASE_TEMPLATE_INVOKE(conf_heap_sizes, conformance::bare_cuda_ranks);
TEST_CASE_TEMPLATE_INVOKE(conf_heap_leaver, conformance::bare_cuda_ranks);
TEST_CASE_TEMPLATE_INVOKE(conf_heap_emplaced, conformance::bare_cuda_ranks);
TEST_CASE_TEMPLATE_INVOKE(conf_heap_misuse, conformance::bare_cuda_ranks);

TEST_CASE("a group of ranks that share a device: copies, composites, what is refused") {
  const std::vector<bool> held = conformance::bare_cuda_ranks::run(3, [](auto& rank) {
    const belay::group_traits& traits = belay::group(rank.world()).traits();
    return traits.meets_on_host && !traits.is_captured && !traits.device_memory_alone && traits.sums_in_rank_order &&
           traits.addresses_peers && conformance::group_of_device_holds(rank);
  });
  REQUIRE(held.size() == 3);
  for (const bool each : held) CHECK(each);
}
