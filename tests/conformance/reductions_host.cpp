// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "conformance/host_processes.hpp"
#include "conformance/host_threads.hpp"
#include "conformance/reductions.hpp"
#include "conformance/through_group.hpp"

TEST_CASE_TEMPLATE_INVOKE(conf_reduce, conformance::host_threads,
                          conformance::through_group<conformance::host_processes>);
TEST_CASE_TEMPLATE_INVOKE(conf_reduce_scatter, conformance::host_threads,
                          conformance::through_group<conformance::host_processes>);
TEST_CASE_TEMPLATE_INVOKE(conf_nan, conformance::host_threads, conformance::through_group<conformance::host_processes>);
TEST_CASE_TEMPLATE_INVOKE(conf_integers, conformance::host_threads,
                          conformance::through_group<conformance::host_processes>);
