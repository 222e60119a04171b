#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""AdamW on the shards of a store against the machine's read-modify-write limit: the fastest of some kernels by hand that
read and write the same streams and only add. On one core and on two, in turn, medians. Beside it torch's fused AdamW and DeepSpeed's CPUAdam,
where they are installed; BELAY_PYTHON=/path/to/python bench/run optimizer takes another interpreter."""
import argparse
import json
import os
import statistics
import subprocess
import sys
import time

from support.trainer_runs import program

LIMIT, GOAL = 0.93, 0.98


def rates_of_shards(ranks, flags):
    command = [program("optimizer_shards", "bench"), str(ranks), str(flags.samples), str(flags.millions)]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def torch_step(threads, millions, samples):
    """Nanoseconds a parameter of torch's fused AdamW, in this process."""
    import torch
    torch.set_num_threads(threads)
    values = [torch.nn.Parameter(torch.full((1024, 1024), 0.5)) for _ in range(millions)]
    for value in values:
        value.grad = torch.full_like(value, 1e-3)
    return timed(torch.optim.AdamW(values, lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1, fused=True), millions, samples)


def deepspeed_step(threads, millions, samples):
    """The same of DeepSpeed's CPUAdam, which is AdamW."""
    import torch
    from deepspeed.ops.adam import DeepSpeedCPUAdam
    torch.set_num_threads(threads)
    values = [torch.nn.Parameter(torch.full((1024, 1024), 0.5)) for _ in range(millions)]
    for value in values:
        value.grad = torch.full_like(value, 1e-3)
    return timed(DeepSpeedCPUAdam(values, lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1, adamw_mode=True), millions, samples)


def timed(optimizer, millions, samples):
    seconds = []
    for _ in range(samples + 2):
        began = time.perf_counter()
        optimizer.step()
        seconds.append(time.perf_counter() - began)
    return 1e9 * statistics.median(seconds[2:]) / (millions << 20)


PEERS = {"torch": torch_step, "deepspeed": deepspeed_step}


def peer(name, threads, flags):
    """A peer in a process of its own, pinned to its cores; None where it is not installed."""
    interpreter = os.environ.get("BELAY_PYTHON", sys.executable)
    command = ["taskset", "-c", "0" if threads == 1 else f"0-{threads - 1}", interpreter, __file__, "--peer", name,
               "--threads", str(threads), "--samples", str(flags.samples), "--millions", str(flags.millions)]
    found = subprocess.run(command, capture_output=True, text=True)
    return float(found.stdout) if found.returncode == 0 else None


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="of all of them in turn")
    parser.add_argument("--samples", type=int, default=11, help="steps a round")
    parser.add_argument("--millions", type=int, default=64, help="of parameters (2^20), over all ranks")
    parser.add_argument("--threads", type=int, default=1, help=argparse.SUPPRESS)
    parser.add_argument("--peer", choices=PEERS, help=argparse.SUPPRESS)
    flags = parser.parse_args()
    if flags.peer:
        print(PEERS[flags.peer](flags.threads, flags.millions, flags.samples))
        return
    enough = True
    for ranks in range(1, min(2, os.cpu_count() or 1) + 1):
        rounds, peers = [], {name: [] for name in PEERS}
        for _ in range(flags.rounds):
            rounds.append(rates_of_shards(ranks, flags))
            for name, found in peers.items():
                if found is not None:
                    took = peer(name, ranks, flags)
                    peers[name] = None if took is None else found + [took]
        middle = {key: statistics.median(each[key] for each in rounds) for key in ("adamw_ns", "limit_ns", "ratio")}
        cores = f"{ranks} core{'s' if ranks > 1 else ''}"
        print(f"optimizer: {cores}: AdamW {middle['adamw_ns']:.3f} ns a parameter, read-modify-write "
              f"{middle['limit_ns']:.3f} ({rounds[-1]['limit']}): {middle['ratio']:.3f} of the limit's speed "
              f"(limit {LIMIT}, goal {GOAL})", flush=True)
        for name, found in peers.items():
            print(f"    {name}: " + ("not installed" if found is None else
                  f"{statistics.median(found):.3f} ns a parameter, {statistics.median(found) / middle['adamw_ns']:.2f} times ours"),
                  flush=True)
        enough = enough and middle["ratio"] >= LIMIT
    if not enough:
        sys.exit(1)


if __name__ == "__main__":
    main()
