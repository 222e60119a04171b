// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "conformance/experts.hpp"
#include "conformance/host_processes.hpp"
#include "conformance/host_threads.hpp"

TEST_CASE_TEMPLATE_INVOKE(conf_experts, conformance::host_threads, conformance::host_processes);
TEST_CASE_TEMPLATE_INVOKE(conf_experts_host, conformance::host_threads, conformance::host_processes);
