#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""How long two ranks of a pipeline wait, schedule by schedule, beside the bubble of the schedule alone; their stages compute
for a millisecond and do nothing else. With --trainer: whole steps of train_moe on two stages, each schedule beside 1f1b.

"formula" is the schedule where tensors wait for nobody, "unbuffered" with its exchanges, one after the other. Medians of
rounds are compared; of --trainer, those of each round's ratio to 1f1b.
"""
import argparse
import json
import statistics
import subprocess
import sys

from support.trainer_runs import Run, program

SCHEDULES = ("1f1b", "gpipe", "interleaved:2", "bfs:2", "interleaved-zb:2", "zb-h1", "zb-v", "v-half", "dualpipe-v")
LIMIT = 1.0  # percentage points over the schedule's own bubble
# Of the tokens/s of 1f1b: limit and goal.
TRAINER_LIMITS = {"zb-v": (1.05, 1.08)}


def idle(flags):
    """Idle time as it was and as the schedule has it; whether all are within the limit."""
    command = [program("pipeline_idle", "bench"), flags.rounds, flags.micro_batches, flags.tick]
    results, worst = [], (0.0, "")
    print(f"2 ranks, {flags.micro_batches} micro-batches, {flags.tick} us a forward, an input gradient, a weight gradient")
    print(f"{'schedule':<17} {'formula':>8} {'unbuffered':>10} {'idle':>8} {'least':>8} {'ratio':>6} {'points':>7}")
    with subprocess.Popen([*map(str, command)], stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout:
            result = json.loads(line)
            results.append(result)
            name, formula = result["schedule"], result["formula"]
            alone = f"{name:<17} {100 * formula:>6.2f} % {100 * result['unbuffered']:>8.2f} %"
            shares = result["idle"]
            result.update(median=statistics.median(shares), least=min(shares))
            result.update(ratio=result["median"] / formula, points=100 * (result["median"] - formula))
            worst = max(worst, (result["points"], name))
            print(
                f"{alone} {100 * result['median']:>6.2f} % {100 * result['least']:>6.2f} % "
                f"{result['ratio']:>6.3f} {result['points']:>+7.2f}",
                flush=True,
            )
    if process.returncode != 0:
        sys.exit(process.returncode)
    print(f"pipeline: at most {worst[0]:.2f} points over a schedule's own bubble, {worst[1]} (limit {LIMIT:.0f})")
    return {"ranks": 2, "micro_batches": flags.micro_batches, "tick_us": flags.tick, "results": results}, worst[0] <= LIMIT


def refusal(flags):
    """Why train_moe does not run with these flags; empty: it does."""
    told = subprocess.run([program(), *map(str, flags), "--steps", "1"], capture_output=True, text=True)
    return "" if told.returncode == 0 else (told.stderr.strip().splitlines() or ["it failed"])[0]


def trainer(flags):
    """Tokens a second of whole steps beside those of 1f1b in the same round."""
    common = ["--mesh", "pp=2", "--micro-batches", flags.micro_batches, "--model", flags.model, "--streams", "immediate"]
    names, results = [], []
    for name in SCHEDULES:
        if why := refusal([*common, "--schedule", name]):
            results.append({"schedule": name, "skipped": why})
            print(f"{name:<17} skipped: {why}", flush=True)
        else:
            names.append(name)
    speeds = {name: [] for name in names}
    for _ in range(flags.rounds):
        for name in names:
            speeds[name].append(Run([*common, "--schedule", name, "--steps", flags.steps]).tokens_per_s())
        print(", ".join(f"{name} {speeds[name][-1]:.0f}" for name in names) + " tokens/s", flush=True)
    for name in names:
        ratios = [mine / plain for mine, plain in zip(speeds[name], speeds["1f1b"])]
        ratio = statistics.median(ratios)
        results.append({"schedule": name, "tokens_per_s": speeds[name], "ratio": ratio})
        limit, goal = TRAINER_LIMITS.get(name, (0, 0))
        judged = f" (limit {limit}, goal {goal})" if limit else ""
        print(f"pipeline: {name} has {ratio:.3f} of the tokens/s of 1f1b, {min(ratios):.3f} to {max(ratios):.3f}{judged}")
    within = all(each["ratio"] >= TRAINER_LIMITS.get(each["schedule"], (0,))[0] for each in results if "ratio" in each)
    return {"ranks": 2, "micro_batches": flags.micro_batches, "model": flags.model, "results": results}, within


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trainer", action="store_true", help="whole steps of train_moe")
    parser.add_argument("--rounds", type=int, default=9, help="of each schedule")
    parser.add_argument("--micro-batches", type=int, default=8, help="of a step; dualpipe-v needs 4")
    parser.add_argument("--tick", type=int, default=1000, metavar="MICROSECONDS", help="that a stage computes for")
    parser.add_argument("--steps", type=int, default=12, help="of --trainer, a round, the first two not counted")
    parser.add_argument("--model", default="tiny", help="of --trainer")
    parser.add_argument("--json", metavar="FILE", help="the same for programs")
    flags = parser.parse_args()
    found, within = trainer(flags) if flags.trainer else idle(flags)
    if flags.json:
        with open(flags.json, "w") as out:
            json.dump(found, out, indent=1)
            out.write("\n")
    return 0 if within or flags.rounds < 3 else 1


if __name__ == "__main__":
    sys.exit(main())
