// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "conformance/moves.hpp"
#include "conformance/mpi_ranks.hpp"

TEST_CASE_TEMPLATE_INVOKE(conf_broadcast, conformance::mpi_ranks);
TEST_CASE_TEMPLATE_INVOKE(conf_all_gather, conformance::mpi_ranks);
TEST_CASE_TEMPLATE_INVOKE(conf_gather, conformance::mpi_ranks);
TEST_CASE_TEMPLATE_INVOKE(conf_all_to_all, conformance::mpi_ranks);
