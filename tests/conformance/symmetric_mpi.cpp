// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "conformance/mpi_ranks.hpp"
#include "conformance/symmetric.hpp"

TEST_CASE_TEMPLATE_INVOKE(conf_heap, conformance::mpi_ranks);
TEST_CASE_TEMPLATE_INVOKE(conf_heap_signal, conformance::mpi_ranks);
TEST_CASE_TEMPLATE_INVOKE(conf_heap_sizes, conformance::mpi_ranks);
TEST_CASE_TEMPLATE_INVOKE(conf_heap_emplaced, conformance::mpi_ranks);
TEST_CASE_TEMPLATE_INVOKE(conf_heap_misuse, conformance::mpi_ranks);
TEST_CASE_TEMPLATE_INVOKE(conf_heap_audit, conformance::mpi_ranks);
