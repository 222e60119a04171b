#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""What data parallelism costs: two ranks as dp=2 --zero N against two independent one-rank copies side by side.

The copies train half the batch each and tell each other nothing, so their sum is what the two cores can do.
Rounds alternate; the median of each side is compared.
"""
import argparse
import statistics

from support.trainer_runs import Run

LIMITS = {0: (5, 3), 1: (5, 3), 2: (6, 4), 3: (12, 8)}  # per cent lost: limit and goal, by ZeRO stage


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10, help="of both sides in turn")
    parser.add_argument("--steps", type=int, default=12, help="a round, the first two not counted")
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--zero", type=int, default=1, choices=range(4), help="what the two ranks divide")
    flags = parser.parse_args()
    limit, goal = LIMITS[flags.zero]
    common = ["--model", flags.model, "--steps", flags.steps]
    together, apart = [], []
    for _ in range(flags.rounds):
        together.append(Run([*common, "--mesh", "dp=2", "--zero", flags.zero]).tokens_per_s())
        copies = [Run([*common, "--mesh", "pp=1", "--micro-batches", 4], cores=core) for core in ("0", "1")]
        apart.append(sum(copy.tokens_per_s() for copy in copies))
        print(f"dp=2 --zero {flags.zero} {together[-1]:.0f} tokens/s, two copies {apart[-1]:.0f}", flush=True)
    lost = 1 - statistics.median(together) / statistics.median(apart)
    print(f"overhead: {100 * lost:.1f} % of the tokens/s of two independent copies are lost (limit {limit} %, goal {goal} %)")


if __name__ == "__main__":
    main()
