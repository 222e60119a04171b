#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Seconds a compiler needs to read the door headers, beside six headers of the standard library.

The two are compiled in turn, so that a machine that speeds up or slows down does it to both; medians are printed.
"""
import argparse
import os
import pathlib
import resource
import statistics
import subprocess
import tempfile

root = pathlib.Path(__file__).resolve().parent.parent
standard = "".join(f"#include <{h}>\n" for h in ("atomic", "thread", "memory", "span", "string", "vector"))
doors = ["core", "kernel", "device", "comm", "step", "parallel", "train", "report"]


def seconds(compiler, source):
    """User and system time of one -fsyntax-only."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([compiler, "-std=c++20", "-fsyntax-only", f"-I{root}/include", source], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--compiler", default="g++", help="g++ or clang++-19")
    parser.add_argument("--rounds", type=int, default=7, help="compilations of each header")
    flags = parser.parse_args()
    headers = [f"belay/{door}.hpp" for door in doors if (root / f"include/belay/{door}.hpp").exists()]
    if (root / "include/belay.hpp").exists():
        headers.append("belay.hpp")
    elif (root / "include/belay/belay.hpp").exists():
        headers.append("belay/belay.hpp")
    with tempfile.TemporaryDirectory() as folder:
        def write(name, text):
            path = os.path.join(folder, name)
            pathlib.Path(path).write_text(text)
            return path
        base = write("standard.cpp", standard)
        print(f"{flags.compiler} -std=c++20 -fsyntax-only, medians of {flags.rounds}", flush=True)
        ratios = {}
        for number, header in enumerate(headers):
            source = write(f"door{number}.cpp", f'#include "{header}"\n')
            pairs = [(seconds(flags.compiler, source), seconds(flags.compiler, base)) for _ in range(flags.rounds)]
            mine = statistics.median(p[0] for p in pairs)
            theirs = statistics.median(p[1] for p in pairs)
            ratios[header] = mine / theirs
            print(f"{header:22} {mine:.2f} s beside {theirs:.2f} s: {ratios[header]:.2f}", flush=True)
        umbrella = ratios.pop(headers[-1])
        slowest = max(ratios, key=ratios.get)
        print(f"include_cost: the slowest door, {slowest}, {ratios[slowest]:.2f} (limit 1.3), "
              f"the umbrella {umbrella:.2f} (limit 2.2)")


if __name__ == "__main__":
    main()
