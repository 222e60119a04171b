// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "conformance/experts.hpp"
#include "conformance/mpi_ranks.hpp"

TEST_CASE_TEMPLATE_INVOKE(conf_experts, conformance::mpi_ranks);
TEST_CASE_TEMPLATE_INVOKE(conf_experts_host, conformance::mpi_ranks);
