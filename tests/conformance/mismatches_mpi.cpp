// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "conformance/mismatches.hpp"
#include "conformance/mpi_ranks.hpp"

TEST_CASE_TEMPLATE_INVOKE(conf_mismatches, conformance::mpi_ranks);
TEST_CASE_TEMPLATE_INVOKE(conf_matches, conformance::mpi_ranks);
