// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "conformance/communicator.hpp"
#include "conformance/moves.hpp"
#include "conformance/nccl_ranks.hpp"
#include "conformance/reductions.hpp"

TEST_CASE_TEMPLATE_INVOKE(conf_exchange, conformance::nccl_ranks);
TEST_CASE_TEMPLATE_INVOKE(conf_send, conformance::nccl_ranks);
TEST_CASE_TEMPLATE_INVOKE(conf_barrier, conformance::nccl_ranks);
TEST_CASE_TEMPLATE_INVOKE(conf_groups, conformance::nccl_ranks);
TEST_CASE_TEMPLATE_INVOKE(conf_reduce, conformance::nccl_ranks);
TEST_CASE_TEMPLATE_INVOKE(conf_reduce_scatter, conformance::nccl_ranks);
TEST_CASE_TEMPLATE_INVOKE(conf_nan, conformance::nccl_ranks);
TEST_CASE_TEMPLATE_INVOKE(conf_integers, conformance::nccl_ranks);
TEST_CASE_TEMPLATE_INVOKE(conf_broadcast, conformance::nccl_ranks);
TEST_CASE_TEMPLATE_INVOKE(conf_all_gather, conformance::nccl_ranks);
TEST_CASE_TEMPLATE_INVOKE(conf_gather, conformance::nccl_ranks);
TEST_CASE_TEMPLATE_INVOKE(conf_all_to_all, conformance::nccl_ranks);
