// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "conformance/mpi_ranks.hpp"
#include "conformance/reductions.hpp"
#include "conformance/through_group.hpp"

TEST_CASE_TEMPLATE_INVOKE(conf_reduce, conformance::through_group<conformance::mpi_ranks>);
TEST_CASE_TEMPLATE_INVOKE(conf_reduce_scatter, conformance::through_group<conformance::mpi_ranks>);
TEST_CASE_TEMPLATE_INVOKE(conf_nan, conformance::through_group<conformance::mpi_ranks>);
TEST_CASE_TEMPLATE_INVOKE(conf_integers, conformance::through_group<conformance::mpi_ranks>);
