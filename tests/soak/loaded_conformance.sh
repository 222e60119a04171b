#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# tests/soak/loaded_conformance.sh [RUNS]
#   what every communicator does, on threads, on processes and on processes of which each in turn joins last, RUNS times
#   (5) with two busy loops beside it.

set -u
. "$(dirname "${BASH_SOURCE[0]}")/../../cmake/ensure.sh"

runs=${1:-5}
[[ $runs =~ ^[1-9][0-9]{0,5}$ ]] || { sed -n '4,6s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 2; }

. "$root/tests/soak/busy_loops.sh"
failed=0
for ((run = 1; run <= runs; ++run)); do
  BELAY_TEST_LEGS=gcc "$root/tests/run" '^conformance/(communicator|first_calls)_host' </dev/null || failed=$((failed + 1))
done
say "$runs runs, $failed failed"
[ $failed = 0 ]
