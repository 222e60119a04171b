// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "conformance/communicator_faults.hpp"
#include "conformance/host_processes.hpp"
#include "conformance/host_threads.hpp"
#include "conformance/in_flight.hpp"

TEST_CASE_TEMPLATE_INVOKE(conf_throw, conformance::host_threads, conformance::host_processes);
TEST_CASE_TEMPLATE_INVOKE(conf_throw_silently, conformance::host_threads, conformance::host_processes);
TEST_CASE_TEMPLATE_INVOKE(conf_return, conformance::host_threads, conformance::host_processes);
TEST_CASE_TEMPLATE_INVOKE(conf_timeout, conformance::host_threads, conformance::host_processes);
TEST_CASE_TEMPLATE_INVOKE(conf_mismatch, conformance::host_threads, conformance::host_processes);
TEST_CASE_TEMPLATE_INVOKE(conf_mismatch_rest, conformance::host_threads, conformance::host_processes);
TEST_CASE_TEMPLATE_INVOKE(conf_mismatch_counts, conformance::host_threads, conformance::host_processes);
TEST_CASE_TEMPLATE_INVOKE(conf_overlap, conformance::host_threads, conformance::host_processes);
TEST_CASE_TEMPLATE_INVOKE(conf_mismatch_pair, conformance::host_threads, conformance::host_processes);
TEST_CASE_TEMPLATE_INVOKE(conf_started_fault, conformance::host_threads, conformance::host_processes);
TEST_CASE_TEMPLATE_INVOKE(conf_in_flight, conformance::host_threads, conformance::host_processes);
TEST_CASE_TEMPLATE_INVOKE(conf_in_flight_silent, conformance::host_threads, conformance::host_processes);
TEST_CASE_TEMPLATE_INVOKE(conf_in_flight_timeout, conformance::host_threads, conformance::host_processes);
TEST_CASE_TEMPLATE_INVOKE(conf_in_flight_mismatch, conformance::host_threads, conformance::host_processes);
TEST_CASE_TEMPLATE_INVOKE(conf_one_order, conformance::host_threads, conformance::host_processes);
TEST_CASE_TEMPLATE_INVOKE(conf_other_order, conformance::host_threads, conformance::host_processes);
