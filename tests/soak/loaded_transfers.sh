#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# tests/soak/loaded_transfers.sh [RUNS]
#   trains RUNS times (200) for six steps on four processes, with two busy loops beside them: ranks join late and are
#   late at every transfer. Fails unless every run ends well; the output of a failed one stays in build/soak.

set -u
. "$(dirname "${BASH_SOURCE[0]}")/../../cmake/ensure.sh"

runs=${1:-200}
[[ $runs =~ ^[1-9][0-9]{0,5}$ ]] || { sed -n '4,6s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 2; }

ensure "g++ cmake ninja-build libcli11-dev nlohmann-json3-dev" "libopenblas-dev clang-19"
dir=$root/build/examples  # as examples/run builds it
configure "$dir" -DCMAKE_BUILD_TYPE=Release -DBELAY_NATIVE=ON -DBELAY_BUILD_TESTS=OFF -DBELAY_BUILD_BENCH=OFF || exit 1
build "$dir" train_moe belay-run || exit 1
mkdir -p "$root/build/soak" && cd "$root/build/soak" || exit 1

. "$root/tests/soak/busy_loops.sh"
command=("$dir/examples/belay-run" -n 4 "$dir/examples/train_moe" --backend processes --steps 6 --sequence 64 --micro-batches 4)
say "$runs times beside two busy loops: ${command[*]}"
failed=0
for ((run = 1; run <= runs; ++run)); do
  start=$SECONDS how=well
  timeout --kill-after 10 300 "${command[@]}" >loaded_transfers.log 2>&1 </dev/null || {
    how="with exit code $?, see $PWD/loaded_transfers.$run.log"
    failed=$((failed + 1))
    mv loaded_transfers.log "loaded_transfers.$run.log"
  }
  say "run $run of $runs ended $how ($((SECONDS - start)) s)"
done
say "$runs runs, $failed failed"
[ $failed = 0 ]
