#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""System calls and heap allocations of a collective: those of N and of 2N calls, counted by strace and by the program.

Every rank makes a mark before its first call and after its last. The system calls of its thread between them, and
of any other thread of the ranks meanwhile, are counted by name. The coordinator of ranks that are processes is no rank:
it polls them a few times a second, however many calls they make.

A wait that outlasts its spin sleeps, and that is a system call; the ranks spin for 2 s here, so that on a machine
that does other things too hardly a wait does. Where one did, the round is repeated; the least of all rounds counts.
"""
import argparse
import collections
import re
import shutil
import subprocess
import sys
import tempfile

from support.collective_runs import program


def calls_between_marks(log, as_processes):
    """Names and numbers of the calls in a log of strace -f; nothing where the marks are not there."""
    lines = []
    for line in log.splitlines():
        call = re.match(r"(\d+) +(\w+)\((.*)", line)  # not: the rest of an interrupted line, a signal, an end
        if call:
            lines.append((int(call[1]), call[2], call[3]))
    begins = {pid: i for i, (pid, _, rest) in enumerate(lines) if "belay: calls begin" in rest}
    ends = {pid: i for i, (pid, _, rest) in enumerate(lines) if "belay: calls end" in rest}
    if len(begins) != 2 or begins.keys() != ends.keys():
        return None
    coordinator = lines[0][0] if as_processes else None
    names = collections.Counter()
    for i, (pid, name, _) in enumerate(lines):
        first, last = begins.get(pid, max(begins.values())), ends.get(pid, min(ends.values()))
        if pid != coordinator and first < i < last:
            names[name] += 1
    return names


def traced(command):
    """What a run asked for between its marks, and its allocations; nothing where strace may not trace."""
    with tempfile.NamedTemporaryFile(mode="r", suffix=".strace") as log:
        run = subprocess.run(["strace", "-f", "-o", log.name, *command], capture_output=True, text=True)
        said = re.search(r"(\d+) heap allocations", run.stdout)
        names = calls_between_marks(log.read(), command[1] == "processes") if said else None
        if names is None:
            print(run.stderr.strip() or run.stdout.strip())
            return None
        return names, int(said[1])


def words(names):
    return ", ".join(f"{name} {number}" for name, number in sorted(names.items())) or "none"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=20000, help="N")
    parser.add_argument("--rounds", type=int, default=10, help="at most so many, until one has none")
    flags = parser.parse_args()
    if shutil.which("strace") is None:
        print("system_calls: skipped, no strace (Debian: apt-get install strace)")
        return 0
    steady = program("steady")
    worst = 0
    cases = [("barrier", 4), ("all_reduce", 8), ("all_reduce", 65536), ("all_gather", 65536), ("broadcast", 64)]
    for ranks in ("threads", "processes"):
        for operation, size in cases:
            once = flags.calls if size < 4096 else flags.calls // 20
            for calls in (once, 2 * once):
                least, rounds = None, 0
                while rounds < flags.rounds and (least is None or least[0] or least[1]):
                    got = traced([steady, ranks, operation, str(size), str(calls)])
                    rounds += 1
                    if got is None:
                        print("system_calls: skipped, strace may not trace here")
                        return 0
                    if least is None or (got[0].total(), got[1]) < (least[0].total(), least[1]):
                        least = got
                names, allocations = least
                worst |= bool(names) or allocations > 0
                what = f"{operation} of {size} bytes, ranks as {ranks}, {calls} calls"
                again = "" if rounds == 1 else f" [least of {rounds} rounds]"
                asked = f"system calls: {words(names)} (limit 0), heap allocations: {allocations} (limit 0)"
                print(f"{what}: {asked}{again}", flush=True)
        # The same without a spin: that sleeps are seen where there are some.
        got = traced([steady, ranks, "all_reduce", "65536", "2000", "0"])
        if got is None or not got[0]["futex"]:
            print(f"ranks as {ranks}, no spin: no sleep was counted (limit at least 1): the zeros above prove nothing")
            worst = 1
        else:
            what = f"all_reduce of 65536 bytes, ranks as {ranks}, 2000 calls"
            print(f"{what}, no spin, for comparison: {words(got[0])}")
    return int(worst)


if __name__ == "__main__":
    sys.exit(main())
