// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The same at the level of checking that compares ranks.
#undef BELAY_CHECKS
#define BELAY_CHECKS 2

#include "conformance/host_processes.hpp"
#include "conformance/host_threads.hpp"
#include "conformance/symmetric.hpp"

TEST_CASE_TEMPLATE_INVOKE(conf_heap, conformance::host_threads, conformance::host_processes);
TEST_CASE_TEMPLATE_INVOKE(conf_heap_signal, conformance::host_threads, conformance::host_processes);
TEST_CASE_TEMPLATE_INVOKE(conf_heap_sizes, conformance::host_threads, conformance::host_processes);
TEST_CASE_TEMPLATE_INVOKE(conf_heap_misuse, conformance::host_threads, conformance::host_processes);
TEST_CASE_TEMPLATE_INVOKE(conf_heap_audit, conformance::host_threads, conformance::host_processes);
