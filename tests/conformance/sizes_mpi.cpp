// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "conformance/mpi_ranks.hpp"
#include "conformance/sizes.hpp"

TEST_CASE_TEMPLATE_INVOKE(conf_wrapping_counts, conformance::mpi_ranks);
TEST_CASE_TEMPLATE_INVOKE(conf_wrapping_buffers, conformance::mpi_ranks);
TEST_CASE_TEMPLATE_INVOKE(conf_wrapping_started, conformance::mpi_ranks);
TEST_CASE_TEMPLATE_INVOKE(conf_wrapping_heap, conformance::mpi_ranks);
