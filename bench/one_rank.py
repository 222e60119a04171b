#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""train_moe on one rank against the same layers in the ordinary loop of examples/01_plain, and in bf16 against itself in
fp32, in turn; and a step of it against its own products, replayed alone."""
import argparse
import re
import statistics
import subprocess

from support.trainer_runs import Run, program


def plain(steps):
    text = subprocess.run(["taskset", "-c", "0", program("01_plain"), str(steps)], check=True, capture_output=True, text=True).stdout
    return statistics.median(float(rate) for rate in re.findall(r"(\d+) tok/s", text)[2:])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="of both sides in turn")
    parser.add_argument("--steps", type=int, default=10, help="a round, the first two not counted")
    flags = parser.parse_args()
    fp32, bf16, loop = [], [], []
    for _ in range(flags.rounds):
        for speeds, dtype in ((fp32, "fp32"), (bf16, "bf16")):
            run = Run(["--mesh", "pp=1", "--dtype", dtype, "--steps", flags.steps], cores="0")
            speeds.append(run.tokens_per_s())
        loop.append(plain(flags.steps))
        print(f"train_moe {fp32[-1]:.0f} tokens/s, bf16 {bf16[-1]:.0f}, 01_plain {loop[-1]:.0f}", flush=True)
    trainer = statistics.median(fp32)
    ratio = trainer / statistics.median(loop)
    print(f"one_rank: train_moe has {ratio:.3f} of the tokens/s of the ordinary loop (limit 0.97)")
    print(f"one_rank: bf16 has {statistics.median(bf16) / trainer:.3f} of the tokens/s of fp32 (limit 0.85)")
    # It builds its own trainer, whose products are listed.
    subprocess.run(["taskset", "-c", "0", program("one_rank_products", "bench"), str(max(flags.steps, 3))], check=True)


if __name__ == "__main__":
    main()
