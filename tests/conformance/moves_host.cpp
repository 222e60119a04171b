// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "conformance/host_processes.hpp"
#include "conformance/host_threads.hpp"
#include "conformance/moves.hpp"
#include "conformance/through_group.hpp"

TEST_CASE_TEMPLATE_INVOKE(conf_broadcast, conformance::host_threads,
                          conformance::through_group<conformance::host_processes>);
TEST_CASE_TEMPLATE_INVOKE(conf_all_gather, conformance::host_threads,
                          conformance::through_group<conformance::host_processes>);
TEST_CASE_TEMPLATE_INVOKE(conf_gather, conformance::host_threads,
                          conformance::through_group<conformance::host_processes>);
TEST_CASE_TEMPLATE_INVOKE(conf_all_to_all, conformance::host_threads,
                          conformance::through_group<conformance::host_processes>);
