// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "conformance/mpi_ranks.hpp"
#include "conformance/reductions.hpp"

TEST_CASE_TEMPLATE_INVOKE(conf_reduce, conformance::mpi_ranks);
TEST_CASE_TEMPLATE_INVOKE(conf_reduce_scatter, conformance::mpi_ranks);
TEST_CASE_TEMPLATE_INVOKE(conf_nan, conformance::mpi_ranks);
TEST_CASE_TEMPLATE_INVOKE(conf_integers, conformance::mpi_ranks);
