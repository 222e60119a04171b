// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "conformance/host_processes.hpp"
#include "conformance/host_threads.hpp"
#include "conformance/mismatches.hpp"

TEST_CASE_TEMPLATE_INVOKE(conf_mismatches, conformance::host_threads, conformance::host_processes);
TEST_CASE_TEMPLATE_INVOKE(conf_matches, conformance::host_threads, conformance::host_processes);
