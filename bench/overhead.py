#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""What data parallelism costs: two ranks as dp=2 --zero N against two independent one-rank copies side by side.

Ranks and copies have a core each. The copies train half the batch each, offload nothing and tell each other nothing, so
their sum is what the two cores can do. Rounds alternate; the median of each side is compared. With --report or --trace the
two ranks are compared with themselves, without and with that flag of train_moe.
"""
import argparse
import os
import re
import statistics
import tempfile

from support.trainer_runs import Run

WHAT, TIERS = ("optimizer", "parameters", "gradients", "activations"), ("pinned", "host", "file")
# Per cent lost: limit and goal, by ZeRO stage where nothing is offloaded; and of the offload that has them.
LIMITS = {0: (5, 3), 1: (5, 3), 2: (6, 4), 3: (12, 8)}
# Of a page of the run, and of a trace of every step.
WATCHED_LIMITS = {"report": 1, "trace": 3}
OFFLOADED, OFFLOADED_LIMIT = {"optimizer", "parameters"}, (16, 10)


def offload(text):
    """What train_moe's flag of this name takes, refused before a round and not after a build."""
    named = []
    for item in text.split(","):
        what, colon, tier = item.partition(":")
        known = not colon or tier in TIERS
        if what not in WHAT or what in named or not known:
            raise argparse.ArgumentTypeError(
                f"'{text}': each of {', '.join(WHAT)} at most once, with :{', :'.join(TIERS)} or nothing, as in "
                "optimizer:pinned,parameters; :file with --tier-dir"
            )
        named.append(what)
    return text


def limit_of(zero, offloaded):
    """What a run is judged by, in words; none for an offload that no limit is known of: a disk has a speed of its own."""
    if not offloaded:
        limit, goal = LIMITS[zero]
    elif zero == 3 and set(re.split("[:,]", offloaded)) - {"pinned", "host"} == OFFLOADED:
        limit, goal = OFFLOADED_LIMIT
    else:
        return ""
    return f" (limit {limit} %, goal {goal} %)"


def watched(which, command, rounds, steps):
    """What a flag costs that only looks on: the same run without and with it."""
    without, with_it = [], []
    for _ in range(rounds):
        without.append(Run(command).tokens_per_s())
        with tempfile.TemporaryDirectory() as folder:
            looks_on = [f"--{which}", os.path.join(folder, which)]
            if which == "trace":
                looks_on += ["--trace-steps", f"1-{steps}"]
            with_it.append(Run([*command, *looks_on]).tokens_per_s())
        print(f"{without[-1]:.0f} tokens/s, with --{which} {with_it[-1]:.0f}", flush=True)
    lost = 1 - statistics.median(with_it) / statistics.median(without)
    print(f"overhead: {100 * lost:.1f} % of the tokens/s are lost by --{which} (limit {WATCHED_LIMITS[which]} %)")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10, help="of both sides in turn")
    parser.add_argument("--steps", type=int, default=12, help="a round, the first two not counted")
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--zero", type=int, default=1, choices=range(4), help="what the two ranks divide")
    parser.add_argument("--offload", type=offload, metavar="WHAT[:TIER],...", help="what the two ranks offload")
    parser.add_argument("--tier-dir", metavar="DIR", help="the folder of an --offload to tier file")
    looks = parser.add_mutually_exclusive_group()
    looks.add_argument("--report", action="store_true", help="what train_moe's --report costs")
    looks.add_argument("--trace", action="store_true", help="what its --trace of all steps costs")
    flags = parser.parse_args()
    if (":file" in (flags.offload or "")) != bool(flags.tier_dir):
        parser.error("--offload with :file, as in parameters:file, and --tier-dir DIR go together")
    common = ["--model", flags.model, "--steps", flags.steps]
    divided = ["--mesh", "dp=2", "--zero", flags.zero]
    if flags.offload:
        divided += ["--offload", flags.offload]
    if flags.tier_dir:
        divided += ["--tier-dir", flags.tier_dir]
    if flags.report or flags.trace:
        which = "report" if flags.report else "trace"
        return watched(which, [*common, *divided], flags.rounds, flags.steps)
    together, apart = [], []
    for _ in range(flags.rounds):
        together.append(Run([*common, *divided]).tokens_per_s())
        copies = [Run([*common, "--mesh", "pp=1", "--micro-batches", 4], cores=core) for core in ("0", "1")]
        apart.append(sum(copy.tokens_per_s() for copy in copies))
        print(f"{' '.join(map(str, divided[1:]))} {together[-1]:.0f} tokens/s, two copies {apart[-1]:.0f}", flush=True)
    lost = 1 - statistics.median(together) / statistics.median(apart)
    judged = limit_of(flags.zero, flags.offload)
    print(f"overhead: {100 * lost:.1f} % of the tokens/s of two independent copies are lost{judged}")


if __name__ == "__main__":
    main()
