// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "conformance/moves.hpp"
#include "conformance/mpi_ranks.hpp"
#include "conformance/through_group.hpp"

TEST_CASE_TEMPLATE_INVOKE(conf_broadcast, conformance::through_group<conformance::mpi_ranks>);
TEST_CASE_TEMPLATE_INVOKE(conf_all_gather, conformance::through_group<conformance::mpi_ranks>);
TEST_CASE_TEMPLATE_INVOKE(conf_gather, conformance::through_group<conformance::mpi_ranks>);
TEST_CASE_TEMPLATE_INVOKE(conf_all_to_all, conformance::through_group<conformance::mpi_ranks>);
