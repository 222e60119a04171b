#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""System calls of a collective: strace counts those of N calls and of 2N; what more there are, N calls made.

A wait that outlasts its spin sleeps, and that is a system call; the ranks spin for longer than usual here, so that
none does. Starting and joining ranks takes a few calls more or less each time: the smallest difference of some rounds
is what counts.
"""
import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile

from support.collective_runs import program


def count(command):
    """Of all threads and processes of the command; nothing where strace may not trace."""
    with tempfile.NamedTemporaryFile(mode="r", suffix=".strace") as summary:
        run = subprocess.run(["strace", "-c", "-f", "-o", summary.name, *command], capture_output=True, text=True)
        if run.returncode != 0:
            print(run.stderr.strip() or run.stdout.strip())
            return None
        calls = {}
        for line in summary.read().splitlines():
            row = re.match(r"\s*[\d.]+\s+[\d.]+\s+\d+\s+(\d+)\s+(?:\d+\s+)?(\w+)$", line)
            if row and row[2] != "total":
                calls[row[2]] = int(row[1])
        return calls


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=20000, help="N")
    parser.add_argument("--rounds", type=int, default=5)
    flags = parser.parse_args()
    if shutil.which("strace") is None:
        print("system_calls: skipped, no strace (Debian: apt-get install strace)")
        return 0
    steady = program("steady")
    worst = 0
    cases = [("barrier", 4), ("all_reduce", 8), ("all_reduce", 65536), ("all_gather", 65536), ("broadcast", 64)]
    for ranks in ("threads", "processes"):
        for operation, size in cases:
            calls = flags.calls if size < 4096 else flags.calls // 20
            best = None
            for _ in range(flags.rounds):
                once = count([steady, ranks, operation, str(size), str(calls)])
                twice = count([steady, ranks, operation, str(size), str(2 * calls)])
                if once is None or twice is None:
                    print("system_calls: skipped, strace may not trace here")
                    return 0
                more = {name: twice.get(name, 0) - once.get(name, 0) for name in {*once, *twice}}
                more = {name: number for name, number in more.items() if number != 0}
                if best is None or abs(sum(more.values())) < abs(sum(best.values())):
                    best = more
                if not best:
                    break
            total = sum(best.values())
            # What does not grow with the calls is not theirs.
            good = abs(total) < calls / 1000
            worst |= not good
            names = ", ".join(f"{name} {number:+d}" for name, number in sorted(best.items())) or "none"
            what = f"{operation} of {size} bytes, ranks as {ranks}"
            print(f"{what}: {calls} calls more, system calls more: {names} (limit 0)")
    return int(worst)


if __name__ == "__main__":
    sys.exit(main())
