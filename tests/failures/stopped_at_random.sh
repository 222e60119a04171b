#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# stopped_at_random.sh BELAY_RUN TRAIN_MOE
#   Runs the trainer on four ranks under belay-run, again and again, and stops one of them (SIGSTOP) at a random time_point of
#   its start, its steps, its export and its end; in every other run the streams of all ranks are threads. Each run must say within --stall, and a margin for a busy machine, that
#   this rank is stopped, must end with a failure and leave no process. A rank that was gone before the signal does not count.
# BELAY_STOPS says how often (4; 100 in a soak), BELAY_SEED where the chances begin (printed).
set -u
belay_run=$1 train_moe=$2
stops=${BELAY_STOPS:-$([ -n "${BELAY_TEST_SOAK:-}" ] && echo 100 || echo 4)}
seed=${BELAY_SEED:-$((RANDOM * 32768 + RANDOM))}
stall_ms=500 margin_ms=5000
RANDOM=$((seed % 32768))

work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
mkfifo "$work/pid" "$work/code"
echo "$work/export" >"$work/ours"
exec 3<>"$work/pid" 4<>"$work/code"
command=("$belay_run" -n 4 --stall 0.5 --grace 0.5 --timeout 120 "$train_moe" --backend processes --model tiny
  --steps 4 --sequence 32 --micro-batches 4 --export "$work/export")

now_ms() { echo $((${EPOCHREALTIME/./} / 1000)); }
stamp() { while IFS= read -r line; do printf '%s %s\n' "$(now_ms)" "$line"; done; }
# start STREAMS
start() {
  rm -rf "$work"/export*
  : >"$work/log"
  {
    (echo "$BASHPID" >&3 && exec "${command[@]}" --streams "$1" 3>&- 4>&-) 2>&1 </dev/null | stamp >"$work/log"
    echo "${PIPESTATUS[0]}" >&4
  } &
  read -r parent <&3
  began=$(now_ms)
}
# finish: the exit code, or nothing where it does not end.
finish() {
  code=
  read -r -t 120 code <&4 || kill -KILL "$parent"
  wait
}
state_of() {
  local stat
  stat=$(cat "/proc/$1/stat" 2>/dev/null) || { echo X; return; }
  stat=${stat##*) }
  echo "${stat%% *}"
}
is_over() { [ ! -e "/proc/$parent/stat" ]; }
# pause MILLISECONDS, without a process
pause() { [ "$1" = 0 ] || read -r -t "$(printf '%d.%03d' $(($1 / 1000)) $(($1 % 1000)))" _ <&3; }
# The pattern comes from a file, or grep would find itself.
left_over() { grep -lsaF -f "$work/ours" /proc/[0-9]*/cmdline | tr -dc '0-9 \n'; }

fail() {
  echo "stop $i (seed $seed, streams $streams): $*"
  tail -n 30 "$work/log"
  failed=$((failed + 1))
}

# One run to the end tells when what happens.
start immediate
finish
[ "$code" = 0 ] || { echo "without a stop: exit code '$code'"; cat "$work/log"; exit 1; }
total=$(($(now_ms) - began))
# after PATTERN: milliseconds until each such line
after() { awk -v from="$began" -v what="$1" 'index($0, what) { print $1 - from }' "$work/log"; }
first_step=$(after '] step ' | head -n 1) last_step=$(after '] step ' | tail -n 1) exported=$(after '] exported' | head -n 1)
[ -n "$first_step" ] && [ -n "$exported" ] || { echo "the trainer does not print what is expected"; cat "$work/log"; exit 1; }
bounds=(0 "$first_step" "$last_step" "$exported" $((total + 20)))
echo "seed $seed; a run takes $total ms: steps from $first_step to $last_step ms, exported at $exported ms"

failed=0 longest=0 missed=0
declare -A said_how=()
for ((i = 0; i - missed < stops && i < 3 * stops; ++i)); do
  # A fourth each: the start, the steps, the export, the end.
  from=${bounds[i % 4]} to=${bounds[i % 4 + 1]}
  wanted=$((from + (to > from ? (RANDOM * 32768 + RANDOM) % (to - from) : 0)))
  which=$((RANDOM % 4))
  streams=immediate
  [ $(((i + i / 4) % 2)) = 0 ] || streams=queued
  start "$streams"
  # What is short is waited for: the fork (of every other start), the export's first file, its last word.
  case $((i % 8)) in
    0) pause "$((RANDOM % 30))" ;;
    2 | 6)
      until compgen -G "$work/export*" >/dev/null || is_over; do pause 2; done
      pause "$((RANDOM % 60))"
      ;;
    3 | 7)
      until grep -q '] exported' "$work/log" || is_over; do pause 2; done
      [ $((i % 8)) = 3 ] || pause "$((RANDOM % 20))"
      ;;
    *) pause "$wanted" ;;
  esac
  wanted=$(($(now_ms) - began))
  # The first child is belay-run's guard, the ranks follow in their order; an ended one is missing.
  children=() rank=
  while [ ${#children[@]} -lt 2 ] && ! is_over; do
    { read -r -a children <"/proc/$parent/task/$parent/children"; } 2>/dev/null
  done
  ranks=("${children[@]:1}")
  if [ ${#ranks[@]} -gt 0 ]; then
    which=$((which % ${#ranks[@]}))
    victim=${ranks[which]}
    kill -STOP "$victim" 2>/dev/null
    stopped_at=$(now_ms)
    rank=$({ tr '\0' '\n' <"/proc/$victim/environ"; } 2>/dev/null | sed -n 's/^BELAY_RANK=//p')
    [ -n "$rank" ] || rank=$which  # it does not run its program yet
    state=$(state_of "$victim")
    while [[ $state != [TZX] ]]; do state=$(state_of "$victim"); done
  else
    state=X
  fi
  finish
  # On a busy machine a rank that was stopped may be ended before its state is read.
  told=$(grep -m 1 -E "rank $rank .*(is|been) stopped" "$work/log")
  if [ -z "$code" ]; then
    fail "rank $rank was stopped after $wanted ms and the run does not end"
  elif [ "$state" != T ] && [ -z "$told" ]; then
    missed=$((missed + 1))
    [ "$code" = 0 ] || fail "rank $rank was gone before the signal at $wanted ms, and the run ends with $code"
  else
    if [ "$code" = 0 ]; then fail "rank $rank was stopped after $wanted ms, and the run ends with 0"
    elif [ -z "$told" ]; then fail "rank $rank was stopped after $wanted ms, and nothing names it"
    else
      late=$((${told%% *} - stopped_at - stall_ms))
      [ "$late" -le "$longest" ] || longest=$late
      [ "$late" -le "$margin_ms" ] || fail "rank $rank is named $late ms after the limit"
      case $told in
        *'has not joined'*) how='before it joined' ;;
        *goodbye*) how='after its goodbye' ;;
        *) how='in its body' ;;
      esac
      said_how[$how]=$((${said_how[$how]:-0} + 1))
    fi
  fi
  left=$(left_over)
  [ -z "$left" ] || { fail "processes are left: $left"; kill -KILL $left 2>/dev/null; }
done

for how in "${!said_how[@]}"; do echo "stopped $how: ${said_how[$how]}"; done
echo "gone before the signal: $missed; named at the latest $longest ms after the limit of $stall_ms ms; $failed of $i failed"
[ "$failed" = 0 ] && [ $((i - missed)) -ge "$stops" ]
