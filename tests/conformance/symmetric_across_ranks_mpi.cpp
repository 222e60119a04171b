// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The same at the level of checking that compares ranks.
#undef BELAY_CHECKS
#define BELAY_CHECKS 2

#include "conformance/mpi_ranks.hpp"
#include "conformance/symmetric.hpp"

TEST_CASE_TEMPLATE_INVOKE(conf_heap, conformance::mpi_ranks);
TEST_CASE_TEMPLATE_INVOKE(conf_heap_signal, conformance::mpi_ranks);
TEST_CASE_TEMPLATE_INVOKE(conf_heap_sizes, conformance::mpi_ranks);
TEST_CASE_TEMPLATE_INVOKE(conf_heap_misuse, conformance::mpi_ranks);
TEST_CASE_TEMPLATE_INVOKE(conf_heap_audit, conformance::mpi_ranks);
