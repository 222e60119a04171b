#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The figures that the collectives are to reach, measured: one table of figure, limit, goal and what it is here.

Every figure is a ratio of two things timed in one run, best 1 or more being better unless it says otherwise. Which
algorithm wins depends on the machine, so ratios to a round trip are shown and not judged. Exit code 1 if one is short.
"""
import argparse
import math
import shutil
import statistics
import subprocess
import sys

from support.collective_runs import collectives, program

KIB, MIB = 1 << 10, 1 << 20
HANDWRITTEN = ["all_reduce", "reduce_scatter", "all_gather", "all_to_all"]
OF_MPI = ["barrier", *HANDWRITTEN, "all_to_all_v", "broadcast", "reduce", "gather", "scatter", "send_recv"]


class Table:
    def __init__(self):
        self.short = 0

    def head(self, text):
        print(f"\n{text}\n{'figure':58} {'limit':>7} {'goal':>7} {'here':>8}", flush=True)

    def add(self, figure, limit, here, goal=None, at_most=False):
        """One line; without a limit it is only shown."""
        if here is None:
            verdict = "not measured"
            self.short += 1
        elif limit is None:
            verdict = ""
        else:
            good = here <= limit if at_most else here >= limit
            verdict = "ok" if good else "short"
            self.short += not good
        show = lambda x: "-" if x is None else f"{x:.2f}"
        print(f"{figure:58} {show(limit):>7} {show(goal):>7} {show(here):>8}  {verdict}", flush=True)


def rows(run, **wanted):
    return [row for row in run if all(row[field] == value for field, value in wanted.items())]


def worst_of(pairs, at_most=False):
    """The worst ratio and where: pairs of (ratio, row)."""
    if not pairs:
        return None, ""
    ratio, row = (max if at_most else min)(pairs, key=lambda pair: pair[0])
    where = f"{row['op']} {row['bytes']} B" + (" in place" if row["in_place"] else "")
    return ratio, where if row["state"] == "single" else f"{where} {row['state']}"


def times_mpi(run):
    return [(row["peers"]["mpi"] / row["p50_us"], row) for row in run if "mpi" in row["peers"]]


def symmetric(table, run):
    table.head("process ranks, symmetric buffers, beside the baseline and the limit")
    for operation in HANDWRITTEN:
        for in_place in (False, True):
            cells = [(row["p50_us"] / row["peers"]["twin"], row)
                     for row in rows(run, op=operation, in_place=in_place)
                     if row["bytes"] >= 4 * KIB and "twin" in row["peers"]]
            if not cells:
                continue
            ratio, where = worst_of(cells, at_most=True)
            table.add(f"time by the best baseline's, worst from 4K: {where}", 1.05, ratio, at_most=True)
    for operation in HANDWRITTEN:
        cells = [(row["copy_us"] / row["p50_us"], row) for row in rows(run, op=operation) if row["bytes"] >= 4 * MIB]
        ratio, where = worst_of(cells)
        table.add(f"of the concurrent copy, worst from 4M: {where or operation}", 0.85, ratio, 0.97)
    for row in rows(run):
        if row["bytes"] <= 56 and row["op"] in ("barrier", "all_reduce", "all_gather", "all_to_all", "broadcast"):
            form = " in place" if row["in_place"] else ""
            if row["op"] == "barrier" or row["bytes"] in (8, 32):
                goal = 0.55 if row["op"] == "barrier" else 0.65
                table.add(f"round trips: {row['op']} {row['bytes']} B{form} {row['state']}", None,
                          row["p50_us"] / row["rtt_us"], goal)


def beside_mpi(table, run):
    table.head("process ranks, symmetric buffers, times as fast as Open MPI")
    for size, limit in ((8, 2.0), (16 * KIB, 2.5), (64 * MIB, 4.0)):
        cells = times_mpi(rows(run, op="all_reduce", bytes=size))
        ratio, where = worst_of(cells)
        table.add(f"all_reduce {size} B: {where}", limit, ratio)
    every = times_mpi(run)
    ratio, where = worst_of(every)
    table.add(f"worst of {len(every)} cells: {where}", 0.95, ratio)
    for ratio, row in sorted(every, key=lambda pair: pair[0])[:12]:
        if ratio < 0.95:
            where = worst_of([(ratio, row)])[1]
            print(f"    {ratio:.2f} {where}: {row['p50_us']:.2f} us, mpi {row['peers']['mpi']:.2f} us")
    mean = math.exp(statistics.fmean(math.log(ratio) for ratio, _ in every)) if every else None
    table.add("geometric mean of all cells", 1.0, mean)


def ordinary(table, run):
    table.head("process ranks, ordinary buffers, times as fast as Open MPI")
    ratio, where = worst_of(times_mpi(rows(run, op="all_reduce", bytes=64 * MIB)))
    table.add(f"all_reduce 64M: {where}", 2.5, ratio, 3.0)
    every = times_mpi(run)
    for operation in sorted({row["op"] for _, row in every}):
        ratio, where = worst_of([pair for pair in every if pair[1]["op"] == operation])
        table.add(f"every size, worst: {where}", 0.95, ratio)


def oversubscribed(table, rounds):
    table.head("8 ranks on two cores, 8 B all_reduce")
    ours, theirs = [], []
    common = ["--ranks", 8, "--op", "all_reduce", "--min", 8, "--max", 8, "--iters", 31]
    for _ in range(rounds):  # the two take turns
        mine = collectives([*common, "--as", "threads"])
        peers = collectives([*common, "--as", "processes", "--beside", "mpi"])
        if not mine or not peers:
            break
        ours += [row["p50_us"] for row in rows(mine["results"], in_place=True)]
        theirs += [row["peers"]["mpi"] for row in rows(peers["results"], in_place=True)]
    ratio = statistics.median(theirs) / statistics.median(ours) if ours and theirs else None
    table.add("thread ranks, times as fast as Open MPI --oversubscribe", 1.5, ratio)
    waiting = subprocess.run([program("waiting")], stdout=subprocess.PIPE, text=True)
    share = waiting.stdout.partition(" uses ")[2].partition(" %")[0]
    used = float(share) if share else None
    table.add("% of a core of a rank that waits for one that computes", 5.0, used, at_most=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few samples and sizes: a look, no verdict")
    parser.add_argument("--part", choices=["symmetric", "ordinary", "oversubscribed"], action="append",
                        help="only this; may be repeated")
    parser.add_argument("--iters", type=int, help="samples of each size instead of the usual number")
    parser.add_argument("--show", action="store_true", help="also the tables that the figures come from")
    flags = parser.parse_args()
    parts = flags.part or ["symmetric", "ordinary", "oversubscribed"]
    if shutil.which("mpirun") is None:
        print("collectives_figures: skipped, no mpirun to compare with (Debian: openmpi-bin libopenmpi-dev)")
        return 0
    sizes = ["--min", 8, "--max", "64M", "--factor", 64 if flags.quick else 4]
    samples = ["--iters", flags.iters or 9] if flags.quick or flags.iters else []

    def measure(*more):
        run = collectives(["--as", "processes", *samples, *more], quiet=not flags.show)
        return run["results"] if run else []

    table = Table()
    if "symmetric" in parts:
        beside = ["--limits", "--check", "--beside", "mpi,twin"]
        run = measure("--op", ",".join(OF_MPI), *sizes, *beside)
        # Neither 16 KiB nor 4 and 64 MiB, where bandwidth is judged, are 8 bytes times a power of 4.
        run += measure("--op", "all_reduce", "--min", "16K", "--max", "16K", *beside)
        run += measure("--op", ",".join(HANDWRITTEN), "--min", "4M", "--max", "64M", "--factor", 4, *beside)
        symmetric(table, run)
        beside_mpi(table, run)
        both = measure("--op", "all_reduce,barrier", "--min", 8, "--max", 8, *([] if samples else ["--iters", 301]), "--beside", "bare")
        table.head("what fingerprint, recorder and deadline cost together")
        for row in both:
            cost = 100 * (row["p50_us"] / row["peers"]["bare"] - 1)
            form = " in place" if row["in_place"] else ""
            limit = 10.0 if row["op"] == "all_reduce" else None
            table.add(f"% of {row['op']} {row['bytes']} B{form} {row['state']}", limit, cost, at_most=True)
    if "ordinary" in parts:
        beside = ["--check", "--buffers", "ordinary", "--beside", "mpi"]
        run = measure("--op", ",".join([*HANDWRITTEN, "broadcast"]), *sizes, *beside)
        run += measure("--op", "all_reduce", "--min", "64M", "--max", "64M", *beside)
        ordinary(table, run)
    if "oversubscribed" in parts:
        oversubscribed(table, 1 if flags.quick else 5)
    print(f"\ncollectives_figures: {table.short} short of their limits (limit 0)")
    return 1 if table.short and not flags.quick else 0


if __name__ == "__main__":
    sys.exit(main())
