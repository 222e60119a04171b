// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "conformance/communicator_faults.hpp"
#include "conformance/in_flight.hpp"
#include "conformance/mpi_ranks.hpp"

TEST_CASE_TEMPLATE_INVOKE(conf_throw, conformance::mpi_ranks);
TEST_CASE_TEMPLATE_INVOKE(conf_throw_silently, conformance::mpi_ranks);
TEST_CASE_TEMPLATE_INVOKE(conf_return, conformance::mpi_ranks);
TEST_CASE_TEMPLATE_INVOKE(conf_timeout, conformance::mpi_ranks);
TEST_CASE_TEMPLATE_INVOKE(conf_mismatch, conformance::mpi_ranks);
TEST_CASE_TEMPLATE_INVOKE(conf_mismatch_rest, conformance::mpi_ranks);
TEST_CASE_TEMPLATE_INVOKE(conf_mismatch_counts, conformance::mpi_ranks);
TEST_CASE_TEMPLATE_INVOKE(conf_overlap, conformance::mpi_ranks);
TEST_CASE_TEMPLATE_INVOKE(conf_mismatch_pair, conformance::mpi_ranks);
TEST_CASE_TEMPLATE_INVOKE(conf_started_fault, conformance::mpi_ranks);
TEST_CASE_TEMPLATE_INVOKE(conf_in_flight, conformance::mpi_ranks);
TEST_CASE_TEMPLATE_INVOKE(conf_in_flight_silent, conformance::mpi_ranks);
TEST_CASE_TEMPLATE_INVOKE(conf_in_flight_timeout, conformance::mpi_ranks);
TEST_CASE_TEMPLATE_INVOKE(conf_in_flight_mismatch, conformance::mpi_ranks);
TEST_CASE_TEMPLATE_INVOKE(conf_one_order, conformance::mpi_ranks);
TEST_CASE_TEMPLATE_INVOKE(conf_other_order, conformance::mpi_ranks);
