#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# mpi_across_namespaces.sh MPIRUN VICTIM COMMUNICATOR ITS_CASES EXPERTS ITS_CASES: two network namespaces with one wire
# between them stand for two machines; mpirun starts two ranks on each, and TCP is their only way to each other. Skipped
# (77) with a line where namespaces are not permitted or mpirun is not Open MPI's.
set -u
mpirun=$1 victim=$2 communicator=("$3" "$4") experts=("$5" "$6")
here=blya$$ there=blyb$$ work=$(mktemp -d)

skip() {
  echo "skipped: $*"
  exit 77
}
trap 'ip netns del $here; ip netns del $there; rm -rf "$work"' EXIT 2>/dev/null
exec 3>&2 2>"$work/errors"
command -v ip >/dev/null && command -v unshare >/dev/null || skip "no ip or no unshare"
"$mpirun" --version | grep -qE "Open MPI|OpenRTE" || skip "this mpirun is not Open MPI's"
ip netns add $here && ip netns add $there || skip "network namespaces are not permitted: $(head -n 1 "$work/errors")"
ip link add veth0 netns $here type veth peer name veth0 netns $there ||
  skip "no wire between network namespaces: $(head -n 1 "$work/errors")"
ip -n $here addr add 198.18.0.1/30 dev veth0
ip -n $there addr add 198.18.0.2/30 dev veth0
for namespace in $here $there; do
  ip -n $namespace link set lo up
  ip -n $namespace link set veth0 up
done
ip netns exec $there unshare --uts true || skip "a machine's name cannot be changed: $(head -n 1 "$work/errors")"
exec 2>&3

# What mpirun calls instead of ssh: the command on "the other machine", which has a name of its own.
cat >"$work/agent" <<EOF
#!/bin/sh
shift
exec ip netns exec $there unshare --uts sh -c 'hostname belay-there; exec sh -c "\$0"' "\$*"
EOF
chmod +x "$work/agent"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
launch() {
  timeout -k 5 60 ip netns exec $here "$mpirun" --mca plm_rsh_agent "$work/agent" --mca btl tcp,self \
    --mca btl_tcp_if_include 198.18.0.0/30 --mca oob_tcp_if_include 198.18.0.0/30 \
    --host 198.18.0.1:2,198.18.0.2:2 --oversubscribe -np 4 "$@" >"$work/out" 2>&1
}
failed=0
expect() {  # <what is expected> <command...>
  local what=$1
  shift
  "$@" && return
  echo "not so: $what"
  cat "$work/out"
  failed=1
}

launch ip -o -4 address || skip "mpirun does not start in network namespaces: $(tail -n 1 "$work/out")"
for address in 198.18.0.1 198.18.0.2; do
  expect "two ranks at $address" [ "$(grep -c "inet $address/30" "$work/out")" = 2 ]
done
expect "groups and started operations work" launch "${communicator[@]}" \
  --test-case="groups of*,every operation*"
expect "experts get and return tokens" launch "${experts[@]}"
launch "$victim" kill 40 30
expect "a dead rank ends the job" [ $? != 124 ]
expect "it is named" grep -qE "process rank 1 with PID|peer_failed by 1:" "$work/out"
exit $failed
