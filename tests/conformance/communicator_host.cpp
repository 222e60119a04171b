// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "conformance/communicator.hpp"
#include "conformance/host_late_processes.hpp"
#include "conformance/host_processes.hpp"
#include "conformance/host_threads.hpp"
#include "conformance/through_group.hpp"

TEST_CASE_TEMPLATE_INVOKE(conf_exchange, conformance::host_threads, conformance::host_processes,
                          conformance::host_late_processes, conformance::through_group<conformance::host_threads>,
                          conformance::through_group<conformance::host_processes>);
TEST_CASE_TEMPLATE_INVOKE(conf_send, conformance::host_threads, conformance::host_processes,
                          conformance::host_late_processes, conformance::through_group<conformance::host_threads>,
                          conformance::through_group<conformance::host_processes>);
TEST_CASE_TEMPLATE_INVOKE(conf_barrier, conformance::host_threads, conformance::host_processes,
                          conformance::host_late_processes, conformance::through_group<conformance::host_threads>,
                          conformance::through_group<conformance::host_processes>);
TEST_CASE_TEMPLATE_INVOKE(conf_started, conformance::host_threads, conformance::host_processes,
                          conformance::host_late_processes, conformance::through_group<conformance::host_threads>,
                          conformance::through_group<conformance::host_processes>);
TEST_CASE_TEMPLATE_INVOKE(conf_started_each, conformance::host_threads, conformance::host_processes,
                          conformance::host_late_processes, conformance::through_group<conformance::host_threads>,
                          conformance::through_group<conformance::host_processes>);
TEST_CASE_TEMPLATE_INVOKE(conf_groups, conformance::host_threads, conformance::host_processes,
                          conformance::host_late_processes, conformance::through_group<conformance::host_threads>,
                          conformance::through_group<conformance::host_processes>);
