// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "conformance/first_calls.hpp"
#include "conformance/host_late_processes.hpp"
#include "conformance/host_processes.hpp"
#include "conformance/host_threads.hpp"

TEST_CASE_TEMPLATE_INVOKE(conf_first_calls, conformance::host_threads, conformance::host_processes,
                          conformance::host_late_processes);
