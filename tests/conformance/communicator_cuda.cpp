// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "conformance/communicator.hpp"
#include "conformance/communicator_faults.hpp"
#include "conformance/cuda_ranks.hpp"
#include "conformance/moves.hpp"
#include "conformance/reductions.hpp"

TEST_CASE_TEMPLATE_INVOKE(conf_exchange, conformance::cuda_ranks);
TEST_CASE_TEMPLATE_INVOKE(conf_send, conformance::cuda_ranks);
TEST_CASE_TEMPLATE_INVOKE(conf_barrier, conformance::late_cuda_ranks);
TEST_CASE_TEMPLATE_INVOKE(conf_groups, conformance::cuda_ranks);
TEST_CASE_TEMPLATE_INVOKE(conf_reduce, conformance::cuda_ranks);
TEST_CASE_TEMPLATE_INVOKE(conf_reduce_scatter, conformance::cuda_ranks);
TEST_CASE_TEMPLATE_INVOKE(conf_nan, conformance::cuda_ranks);
TEST_CASE_TEMPLATE_INVOKE(conf_integers, conformance::cuda_ranks);
TEST_CASE_TEMPLATE_INVOKE(conf_broadcast, conformance::cuda_ranks);
TEST_CASE_TEMPLATE_INVOKE(conf_all_gather, conformance::cuda_ranks);
TEST_CASE_TEMPLATE_INVOKE(conf_gather, conformance::cuda_ranks);
TEST_CASE_TEMPLATE_INVOKE(conf_all_to_all, conformance::cuda_ranks);
TEST_CASE_TEMPLATE_INVOKE(conf_throw, conformance::late_cuda_ranks);
TEST_CASE_TEMPLATE_INVOKE(conf_throw_silently, conformance::late_cuda_ranks);
TEST_CASE_TEMPLATE_INVOKE(conf_return, conformance::late_cuda_ranks);
TEST_CASE_TEMPLATE_INVOKE(conf_timeout, conformance::late_cuda_ranks);
TEST_CASE_TEMPLATE_INVOKE(conf_mismatch, conformance::late_cuda_ranks);
TEST_CASE_TEMPLATE_INVOKE(conf_mismatch_rest, conformance::late_cuda_ranks);
TEST_CASE_TEMPLATE_INVOKE(conf_mismatch_pair, conformance::late_cuda_ranks);
