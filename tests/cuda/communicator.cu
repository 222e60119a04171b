// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The conformance suites of a communicator over ranks that share a device of the real runtime, as
// conformance/communicator_cuda runs them over one of the host.
#define DOCTEST_CONFIG_IMPLEMENT
#include <cuda_runtime.h>

#include <cstdio>

#include "belay/backend/cuda/runtime_api.cuh"
#include "conformance/communicator.hpp"
#include "conformance/communicator_faults.hpp"
#include "conformance/moves.hpp"
#include "conformance/ranks_of_device.hpp"
#include "conformance/reductions.hpp"
#include "conformance/symmetric.hpp"
#include "support/card.hpp"

namespace conformance {

struct real_device {
  template <class Use>
  static void on_one(const Use& use) {
    belay::cuda::runtime_api api;
    use(api);
  }
  template <class Use>
  static void on_each(const Use& use) {
    on_one(use);
  }
};
using real_ranks = ranks_of_device<real_device>;
using bare_ranks = bare_ranks_of_device<real_device>;

}  // namespace conformance

TEST_CASE_TEMPLATE_INVOKE(conf_exchange, conformance::real_ranks);
TEST_CASE_TEMPLATE_INVOKE(conf_send, conformance::real_ranks);
TEST_CASE_TEMPLATE_INVOKE(conf_barrier, conformance::real_ranks);
TEST_CASE_TEMPLATE_INVOKE(conf_groups, conformance::real_ranks);
TEST_CASE_TEMPLATE_INVOKE(conf_reduce, conformance::real_ranks);
TEST_CASE_TEMPLATE_INVOKE(conf_reduce_scatter, conformance::real_ranks);
TEST_CASE_TEMPLATE_INVOKE(conf_nan, conformance::real_ranks);
TEST_CASE_TEMPLATE_INVOKE(conf_integers, conformance::real_ranks);
TEST_CASE_TEMPLATE_INVOKE(conf_broadcast, conformance::real_ranks);
TEST_CASE_TEMPLATE_INVOKE(conf_all_gather, conformance::real_ranks);
TEST_CASE_TEMPLATE_INVOKE(conf_gather, conformance::real_ranks);
TEST_CASE_TEMPLATE_INVOKE(conf_all_to_all, conformance::real_ranks);
TEST_CASE_TEMPLATE_INVOKE(conf_throw, conformance::real_ranks);
TEST_CASE_TEMPLATE_INVOKE(conf_throw_silently, conformance::real_ranks);
TEST_CASE_TEMPLATE_INVOKE(conf_return, conformance::real_ranks);
TEST_CASE_TEMPLATE_INVOKE(conf_timeout, conformance::real_ranks);
TEST_CASE_TEMPLATE_INVOKE(conf_mismatch, conformance::real_ranks);
TEST_CASE_TEMPLATE_INVOKE(conf_mismatch_rest, conformance::real_ranks);
TEST_CASE_TEMPLATE_INVOKE(conf_mismatch_pair, conformance::real_ranks);
TEST_CASE_TEMPLATE_INVOKE(conf_heap, conformance::bare_ranks);
TEST_CASE_TEMPLATE_INVOKE(conf_heap_signal, conformance::bare_ranks);
TEST_CASE_TEMPLATE_INVOKE(conf_heap_sizes, conformance::bare_ranks);
TEST_CASE_TEMPLATE_INVOKE(conf_heap_leaver, conformance::bare_ranks);

int main(int argc, char** argv) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::printf("no device: compiled and linked\n");
    return test::code_without_card();
  }
  return doctest::Context(argc, argv).run();
}
