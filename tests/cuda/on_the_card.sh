#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# What tests/run --cuda --pack has built, on a machine with a card:
#   mkdir -p build/c && tar -C build/c -xzf build/card.tgz && OUT=results bash build/c/on_the_card.sh
# Runs all of it in the order of what one learns first, each part with a limit of its own and all within BUDGET seconds
# (560). A part is one line of the summary; what there is no time for is skipped by name. Needs a driver and the libraries of
# CUDA; NCCL, torch and the tools of CUDA are used where they are found, and a line says what is not.
# OUT (./out) gets at most 8 files: summary.txt env.txt tests.log sanitizer.log train.log figures.json kernels.csv trace.json.
# Ends with 0, with 1 where a test has failed, with 4 where no card answers.
set -u
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
bin=$here/bin out=${OUT:-$PWD/out} budget=${BUDGET:-560} began=$SECONDS
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
last=$work/last.txt
mkdir -p "$out" && : >"$out/summary.txt" || exit 1
(cd "$out" && rm -f env.txt tests.log sanitizer.log train.log figures.json kernels.csv trace.json)
PATH=$PATH:/usr/local/cuda/bin:$(ls -d /opt/nvidia/nsight-compute/* 2>/dev/null | tail -n 1)
export LC_ALL=C.UTF-8 PATH PYTHONUNBUFFERED=1 BELAY_TIMEOUT=${BELAY_TIMEOUT:-45}  # a hang must not take all the time there is

left() { echo $((budget - (SECONDS - began))); }
say() { printf '%s\n' "$*" | tee -a "$out/summary.txt"; }
has() { command -v "$1" >/dev/null; }

# part NAME LIMIT LOG COMMAND...: runs it where there is time; its last words are the line of the summary.
card=1
part() {
  local name=$1 limit=$2 log=$3 from=$EPOCHREALTIME code
  shift 3
  : >"$last"
  if [ "$(left)" -lt $((limit < 30 ? limit : 30)) ]; then
    say "$name: skipped, $(left) s are left"
    return 99
  fi
  [ "$limit" -le "$(left)" ] || limit=$(left)
  printf '=== %s: %s\n' "$name" "$*" >>"$out/$log"
  timeout -k 5 "$limit" "$@" >"$last" 2>&1
  code=$?
  head -c 1500000 "$last" >>"$out/$log"
  say "$(printf '%-28s code %3d  %6.1f s  %s' "$name" $code \
    "$(awk "BEGIN{print $EPOCHREALTIME - $from}")" "$(tail -n 1 "$last" | cut -c 1-120)")"
  case $code in
    0 | 77) ;;
    4) [ -n "$card" ] && tail -n 6 "$last" | sed 's/^/      /' >>"$out/summary.txt" ;;
    *) tail -n 6 "$last" | sed 's/^/      /' | tee -a "$out/summary.txt" ;;
  esac
  return $code
}
# test_part NAME ...: a part that is right or wrong.
bad=
test_part() {
  part "$@"
  case $? in 0 | 77 | 99) ;; *) bad+=" $1" ;; esac
}
# hung NAME: whether the part ended by its limit.
hung() { grep -qE "^$1 +code (124|137) " "$out/summary.txt"; }
# repeat PATTERN: lines of the last part, in the summary too.
repeat() { grep -E "$1" "$last" | cut -c 1-160 | tee -a "$out/summary.txt"; }

# Libraries: where the loader looks, in the toolkit, and in Python's packages.
python=$(command -v python3 || command -v python)
find_library() {
  local folder
  while read -r folder; do
    [ ! -e "$folder/$1" ] || { echo "$folder"; return; }
  done < <(
    tr ':' '\n' <<<"${LD_LIBRARY_PATH:-}"
    ldconfig -p 2>/dev/null | sed -n "s|.*=> \(.*\)/$1\$|\1|p"
    printf '%s\n' /usr/local/cuda/lib64 /usr/local/cuda/lib /usr/local/cuda/targets/*/lib /usr/local/lib /usr/lib/*-linux-gnu
    [ -z "$python" ] || "$python" -c 'import glob, site, sys
for base in dict.fromkeys(sys.path + site.getsitepackages() + [site.getusersitepackages()]):
    if base: print("\n".join(glob.glob(base + "/nvidia/*/lib")))' 2>/dev/null
  )
  timeout 20 find /usr /opt ${HOME:+"$HOME"} -name "$1" -printf '%h\n' -quit 2>/dev/null
}
folders=
for library in libcudart.so.13 libcublas.so.13 libcublasLt.so.13 libnccl.so.2 libcudnn.so.9; do
  folder=$(find_library $library | head -n 1)
  if [ -n "$folder" ]; then
    [[ ":$folders:" = *":$folder:"* ]] || folders=$folders${folders:+:}$folder
  elif [ $library = libnccl.so.2 ]; then
    say "NCCL: $library is not found; what needs it is left out"
    nccl=none
  elif [ $library = libcudnn.so.9 ]; then
    say "cuDNN: $library is not found; what needs it is left out"
    cudnn=none
  else
    say "CUDA: $library is not found, and no program can start without it"
  fi
done
# In the place of an NCCL that is not there, last.
own=${LD_LIBRARY_PATH:-}  # of the machine: Python's packages bring their libraries
export LD_LIBRARY_PATH=${folders:+$folders:}${own:+$own:}$here/without_nccl

{
  echo "commit $(cat "$here/commit.txt")"
  timeout -k 2 15 nvidia-smi
  timeout -k 2 15 nvidia-smi -q -d CLOCK | head -n 40
  timeout -k 2 15 nvidia-smi --query-gpu=pcie.link.gen.current,pcie.link.width.current --format=csv
  [ -z "$python" ] || "$python" --version
  echo "libraries: $folders"
  nproc; free -g; ulimit -a; uname -a; head -n 3 /etc/os-release
  ldd "$bin/cuda_backend"
} >"$out/env.txt" 2>&1
say "$(timeout -k 2 15 nvidia-smi -L 2>/dev/null || echo 'nvidia-smi finds no card') ($(head -c 12 "$here/commit.txt"), $(date -u +%F))"

program_of() { awk -v name="$1" '$1 == name { print $2 }' "$here/programs.txt"; }
needs() { [ "$(awk -v name="$1" '$1 == name { print $3 }' "$here/programs.txt")" = "$2" ]; }  # a program, a library

if ldd "$bin/cuda_probe" 2>&1 | grep -E 'not found' | tee -a "$out/summary.txt" | grep .; then
  say "The programs cannot start here: nothing is tried"
  exit 1
fi

# 1. What is taken for granted. Where no card answers all the programs still say so, and nothing else is tried.
part probe 40 tests.log "$bin/cuda_probe"
[ $? != 4 ] || card=
if [ -n "$card" ]; then
  repeat 'canUse|capture|launches|graph|poll|registering'
  part probe/portable 20 tests.log "$bin/cuda_probe" portable
  test_part probe/mapped 20 tests.log "$bin/cuda_probe" mapped
fi

# 2. Right or wrong: a process each, what others stand on first; what is new comes last.
order="kernels sorting attention cudnn backend model streams world on_a_gpu launch trainer nccl_alone nccl nccl_peers nccl_trainer communicator"
names=$(printf 'cuda/%s\n' $order; grep -o '^cuda/[^ ]*' "$here/programs.txt")
for name in $(awk '!seen[$0]++' <<<"$names"); do
  program=$(program_of "$name")
  [ "$name" != cuda/probe ] || continue
  if [ -z "$program" ]; then
    say "$name: not in the pack"
  elif [ -n "${nccl:-}" ] && needs "$name" nccl; then
    say "$name: left out, there is no NCCL"
  elif [ -n "${cudnn:-}" ] && needs "$name" cudnn; then
    say "$name: left out, there is no cuDNN"
  else
    limit=60
    [ "$name" != cuda/communicator ] || limit=100
    test_part "$name" $limit tests.log "$bin/$program"
  fi
done
# What has failed, once more at once, where a tool says the line; what hung, a launch at a time. Figures keep their time.
if [ -n "$bad" ] && [ -n "$card" ]; then
  has compute-sanitizer || say "compute-sanitizer: not found; what has failed is not run again under it"
  for name in $bad; do
    program=$(program_of "$name")
    if [ -z "$program" ]; then
      continue
    elif [ "$(left)" -lt $((budget * 6 / 10)) ]; then
      say "$name again: skipped, figures need the time"
    elif hung "$name"; then
      part "blocking $name" 30 sanitizer.log env CUDA_LAUNCH_BLOCKING=1 BELAY_TIMEOUT=20 "$bin/$program"
    elif has compute-sanitizer; then
      part "memcheck of $name" 60 sanitizer.log compute-sanitizer --tool memcheck --report-api-errors no --print-limit 5 "$bin/$program"
    fi
  done
fi

# 3. Figures, and what torch reaches on this card.
if [ -z "$(program_of bench/figures)" ]; then
  say "figures: not in the pack"
else
  part figures 110 tests.log "$bin/cuda_figures" --json "$out/figures.json"
  [ -z "$card" ] || repeat 'short|FLOP|GB/s| us'
fi
if [ -n "$(program_of bench/collectives)" ] && [ -z "${nccl:-}" ]; then
  part collectives 40 tests.log "$bin/cuda_collectives" --max 64K --op all --overlap 256
fi
# 4. The trainer.
corpus=(--data "$here/corpus.txt") one=(--mesh pp=1 --zero 0)
trainer=$bin/train_moe
if [ -z "$(program_of train_moe)" ]; then
  say "train_moe: not in the pack"
elif [ -z "$card" ]; then
  part train/cuda-tiny 30 train.log "$trainer" --device cuda "${corpus[@]}" "${one[@]}" --steps 2
fi
if [ -z "$card" ]; then
  say "No card answers: nothing else is tried. $((SECONDS - began)) s"
  exit 4
fi
torch=
if [ -z "$python" ] || [ "$(left)" -lt 30 ] ||
  ! env LD_LIBRARY_PATH="$own" timeout -k 5 60 "$python" -c 'import torch; assert torch.cuda.is_available()' 2>/dev/null; then
  say "torch: not found, or there is no time, or it sees no card; nothing is put beside Belay's figures"
else
  torch=1
  part torch 70 tests.log env LD_LIBRARY_PATH="$own" "$python" "$here/bench/torch_reference.py"
  repeat .
fi
config() {
  cat <<J
{"model_type": "mixtral", "hidden_act": "silu", "vocab_size": 256, "hidden_size": 1024, "intermediate_size": 3584, "num_hidden_layers": $1,
 "num_attention_heads": 16, "num_key_value_heads": 4, "num_local_experts": 8, "num_experts_per_tok": 2, "max_position_embeddings": 1024,
 "router_aux_loss_coef": 0.01, "tie_word_embeddings": false, "rms_norm_eps": 1e-5, "rope_theta": 1e6}
J
}
config 11 >"$work/1b.json"
config 2 >"$work/two_layers.json"
large=(--sequence 1024 --dtype bf16)
if [ -n "$(program_of train_moe)" ]; then
  part train/host-tiny 30 train.log "$trainer" "${corpus[@]}" "${one[@]}" --steps 8 --json "$work/host.jsonl"
  test_part train/cuda-tiny 30 train.log "$trainer" --device cuda "${corpus[@]}" "${one[@]}" --steps 8 --json "$work/cuda.jsonl"
  test_part train/cuda-tiny-graph 30 train.log "$trainer" --device cuda "${corpus[@]}" "${one[@]}" --steps 8 --graph \
    --json "$work/graph.jsonl"
  test_part train/four-ranks 40 train.log "$trainer" --device cuda "${corpus[@]}" --mesh ep=2,dp=2 --devices shared --steps 6
  for run in host cuda graph; do  # side by side
    losses=$(sed -nE '/"summary"/!s/.*"loss": ?([^,}]+).*/\1/p' "$work/$run.jsonl" 2>/dev/null | tr '\n' ' ')
    say "$(printf 'losses %-6s' $run) $losses"
  done
  part train/2-layers-bf16 60 train.log "$trainer" --device cuda "${corpus[@]}" "${one[@]}" --model "$work/two_layers.json" "${large[@]}" --steps 4 \
    --trace "$out/trace.json" --trace-steps 3-3
  tail -n 5 "$last" | tee -a "$out/summary.txt"
  # 5. Where its time goes: what each kernel takes, the most first.
  if has ncu; then
    part ncu 70 tests.log ncu --clock-control none --metrics gpu__time_duration.sum --csv --log-file "$out/kernels.csv" -c 2500 \
      --kill yes "$trainer" --device cuda "${corpus[@]}" "${one[@]}" --model "$work/two_layers.json" "${large[@]}" --steps 1 --micro-batches 1
    [ ! -s "$out/kernels.csv" ] || [ -z "$python" ] || "$python" - "$out/kernels.csv" <<'P' 2>&1 | tee -a "$out/summary.txt"
import collections, csv, re, sys
rows = [row for row in csv.reader(open(sys.argv[1])) if len(row) > 10]
if rows:
    name, value, unit = (rows[0].index(title) for title in ("Kernel Name", "Metric Value", "Metric Unit"))
    us = {"nsecond": 1e-3, "ns": 1e-3, "usecond": 1, "us": 1, "msecond": 1e3, "ms": 1e3}
    all_of = collections.defaultdict(lambda: [0, 0.0])
    for row in rows[1:]:
        one = all_of[re.sub(r"belay::v\d+_checks\d::|\(.*", "", row[name])[:100]]
        one[0] += 1
        one[1] += float(row[value].replace(",", "")) * us.get(row[unit], 1)
    for kernel, (count, time) in sorted(all_of.items(), key=lambda item: -item[1][1])[:30]:
        print(f"{time / 1e3:9.3f} ms {count:5d} x {time / count:9.1f} us  {kernel}")
P
  else
    say "ncu: not found; what each kernel takes is not measured"
  fi
  # 6. A model of a billion parameters beside torch's.
  part train/1b-bf16 75 train.log "$trainer" --device cuda "${corpus[@]}" "${one[@]}" --model "$work/1b.json" "${large[@]}" --steps 3
  tail -n 4 "$last" | tee -a "$out/summary.txt"
fi
if [ -n "$torch" ] && [ "$(left)" -lt 30 ]; then
  say "torch/1b-bf16: skipped, $(left) s are left"
elif [ -n "$torch" ] && env LD_LIBRARY_PATH="$own" timeout -k 5 30 "$python" -c 'import transformers' 2>/dev/null; then
  part torch/1b-bf16 75 tests.log env LD_LIBRARY_PATH="$own" "$python" "$here/bench/beside_torch.py" --size 1b --steps 5 --as cuda
elif [ -n "$torch" ]; then
  say "transformers: not found; torch's model of a billion parameters is not trained"
fi

# 7. The sanitizer, with what is left.
if has compute-sanitizer; then
  for tool in "racecheck" "memcheck --report-api-errors no"; do
    for name in kernels attention backend sorting model world streams; do
      [ -n "$(program_of "cuda/$name")" ] || continue
      # shellcheck disable=SC2086
      part "${tool%% *}/$name" 40 sanitizer.log compute-sanitizer --tool $tool --error-exitcode 9 --print-limit 5 "$bin/cuda_$name"
      case $? in 1 | 9) bad+=" ${tool%% *}/$name" ;; esac  # a limit, or a tool that cannot run, is no failed test
    done
  done
else
  say "compute-sanitizer: not found; nothing is run under it"
fi
[ -z "$bad" ] || say "failed:$bad"
say "done after $((SECONDS - began)) s; results are in $out"
[ -z "$bad" ]
