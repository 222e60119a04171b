// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "conformance/host_processes.hpp"
#include "conformance/host_threads.hpp"
#include "conformance/sizes.hpp"

TEST_CASE_TEMPLATE_INVOKE(conf_wrapping_counts, conformance::host_threads, conformance::host_processes);
TEST_CASE_TEMPLATE_INVOKE(conf_wrapping_buffers, conformance::host_threads, conformance::host_processes);
TEST_CASE_TEMPLATE_INVOKE(conf_wrapping_started, conformance::host_threads, conformance::host_processes);
TEST_CASE_TEMPLATE_INVOKE(conf_wrapping_heap, conformance::host_threads, conformance::host_processes);
