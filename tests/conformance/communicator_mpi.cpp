// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "conformance/communicator.hpp"
#include "conformance/mpi_ranks.hpp"
#include "conformance/through_group.hpp"

TEST_CASE_TEMPLATE_INVOKE(conf_exchange, conformance::mpi_ranks, conformance::through_group<conformance::mpi_ranks>);
TEST_CASE_TEMPLATE_INVOKE(conf_send, conformance::mpi_ranks, conformance::through_group<conformance::mpi_ranks>);
TEST_CASE_TEMPLATE_INVOKE(conf_barrier, conformance::mpi_ranks, conformance::through_group<conformance::mpi_ranks>);
TEST_CASE_TEMPLATE_INVOKE(conf_started, conformance::mpi_ranks, conformance::through_group<conformance::mpi_ranks>);
TEST_CASE_TEMPLATE_INVOKE(conf_started_each, conformance::mpi_ranks,
                          conformance::through_group<conformance::mpi_ranks>);
TEST_CASE_TEMPLATE_INVOKE(conf_groups, conformance::mpi_ranks, conformance::through_group<conformance::mpi_ranks>);
