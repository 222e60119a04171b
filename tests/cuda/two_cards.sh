#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# The example trainer as users start it, on two cards: ranks that are threads, processes and, where mpirun is found, of
# MPI, have the same losses. Builds it (examples/run --cuda). Ends with 77 where there are no two cards.
set -u
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)

cards=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU ')
if [ "$cards" -lt 2 ]; then
  echo "two_cards: skipped, nvidia-smi finds $cards GPUs here, and it takes two"
  exit 77
fi
folder=$(mktemp -d) || exit 1
trap 'rm -rf "$folder"' EXIT
backends="threads processes"
if command -v mpirun >/dev/null; then backends+=" mpi"; else echo "two_cards: mpi is skipped, there is no mpirun"; fi

# losses_of <backend>: the text of each step's.
losses_of() {
  "$root/examples/run" --cuda --backend "$1" --mesh dp=2 --zero 3 --steps 4 --json "$folder/$1.jsonl" >"$folder/$1.log" 2>&1 || {
    tail -n 20 "$folder/$1.log" >&2
    return 1
  }
  sed -nE '/"summary"/!s/.*"loss": ?([^,}]+).*/\1/p' "$folder/$1.jsonl" | tr '\n' ' '
}

expected= worst=0
for backend in $backends; do
  losses=$(losses_of "$backend") || { echo "two_cards: $backend: failed"; exit 1; }
  [ -n "$expected" ] || expected=$losses
  if [ -n "$losses" ] && [ "$losses" = "$expected" ]; then
    echo "two_cards: $backend: $losses"
  else
    echo "two_cards: $backend: $losses, others than those of threads: $expected"
    worst=1
  fi
done
exit $worst
