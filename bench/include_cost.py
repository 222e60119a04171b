#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""What a compiler needs for the door headers, and for whole programs, beside the headers of the standard library.

Doors: -fsyntax-only of a file with one include, beside six headers of the standard library. Programs: -O2 of one
all_reduce on threads and of examples, header-only and with separate compilation, beside a file with the standard
headers that the same program includes. The two are compiled in turn, so that a machine that speeds up or slows down
does it to both; medians of user and system time are printed. The core: each part of belay/source.hpp, once.
"""
import argparse
import os
import pathlib
import re
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile

root = pathlib.Path(__file__).resolve().parent.parent
standard = "".join(f"#include <{h}>\n" for h in ("atomic", "thread", "memory", "span", "string", "vector"))
doors = ["core", "kernel", "device", "comm", "step", "parallel", "train", "report", "report_page"]
separate = "-DBELAY_SEPARATE_COMPILATION"
one_all_reduce = """#include <vector>

#include "belay/backend/host.hpp"

int main() {
  belay::host::world(2).run([](belay::host::rank& self) {
    std::vector<float> values(1024, 1.0F);
    belay::all_reduce(self.world(), values, belay::sum);
  });
}
"""
# Seconds with g++ -O2: header-only and separately compiled. Clang may take 1.2 times as long.
programs = {"one all_reduce": (8.0, 3.0), "00_hello": (36.0, 6.0), "01_plain": (18.0, 10.0)}
core_limits = 110.0, 15.0  # all parts, and each
clang_factor = 1.2


common = ["-std=c++20", f"-I{root}/include", f"-I{root}/examples", f'-DBELAY_SOURCE_DIR="{root}"']


def seconds(compiler, source, *flags):
    """User and system time of one compilation."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([compiler, *common, *flags, source], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def in_turn(rounds, *compilations):
    """The median of each of several compilations, taken in turn."""
    times = [[seconds(*one) for one in compilations] for _ in range(rounds)]
    return [statistics.median(column) for column in zip(*times)]


def standard_headers(compiler, source, *flags):
    """The headers of the standard library that a source includes, directly or through others."""
    listed = subprocess.run([compiler, *common, "-M", *flags, source],
                            check=True, stdout=subprocess.PIPE, text=True).stdout
    names = set(re.findall(r"/include/c\+\+/(?:v1|[0-9]+)/([a-z_]+)(?=\s)", listed))
    return "".join(f"#include <{name}>\n" for name in sorted(names)) + "int main() {}\n"


def measure_doors(compiler, rounds, write):
    headers = [f"belay/{door}.hpp" for door in doors if (root / f"include/belay/{door}.hpp").exists()]
    headers.append("belay/belay.hpp")
    base = write("standard.cpp", standard)
    print(f"{compiler} -std=c++20 -fsyntax-only, medians of {rounds}", flush=True)
    ratios = {}
    for number, header in enumerate(headers):
        source = write(f"door{number}.cpp", f'#include "{header}"\n')
        mine, theirs = in_turn(rounds, (compiler, source, "-fsyntax-only"), (compiler, base, "-fsyntax-only"))
        ratios[header] = mine / theirs
        print(f"{header:22} {mine:.2f} s beside {theirs:.2f} s: {ratios[header]:.2f}", flush=True)
    umbrella = ratios.pop(headers[-1])
    slowest = max(ratios, key=ratios.get)
    print(f"include_cost: the slowest door, {slowest}, {ratios[slowest]:.2f} (limit 1.3), "
          f"the umbrella {umbrella:.2f} (limit 2.2)", flush=True)


def measure_programs(compiler, rounds, write, folder):
    """The seconds of each program, header-only and separately compiled."""
    print(f"{compiler} -std=c++20 -O2 -c, medians of {rounds}", flush=True)
    found = {}
    for name, limits in programs.items():
        source = (write("one_all_reduce.cpp", one_all_reduce) if name == "one all_reduce"
                  else str(root / f"examples/{name}.cpp"))
        base = write("standard_of_program.cpp", standard_headers(compiler, source))
        optimized = ("-O2", "-c", "-o", os.path.join(folder, "out.o"))
        whole, declared, theirs = in_turn(rounds, (compiler, source, *optimized),
                                          (compiler, source, separate, *optimized), (compiler, base, *optimized))
        found[name] = (whole, declared)
        print(f"{name:15} header-only {whole:5.2f} s ({whole / theirs:4.1f} x), separately compiled {declared:5.2f} s "
              f"({declared / theirs:4.1f} x), the standard headers {theirs:.2f} s", flush=True)
        if "clang" not in compiler:
            print(f"include_cost: {name} {whole:.1f} s (limit {limits[0]:g}), separately compiled {declared:.1f} s "
                  f"(limit {limits[1]:g})", flush=True)
    source = write("source.cpp", '#include "belay/source.hpp"\n')
    text = (root / "include/belay/source.hpp").read_text()
    count = max(int(part) for part in re.findall(r"BELAY_SOURCE_PART == (\d+)", text))
    parts = [seconds(compiler, source, separate, f"-DBELAY_SOURCE_PART={part}", "-O2", "-c", "-o",
                     os.path.join(folder, "out.o")) for part in range(1, count + 1)]
    print(f"{'source.hpp':15} in {count} parts: " + ", ".join(f"{part:.1f}" for part in parts) + " s", flush=True)
    if "clang" not in compiler:
        print(f"include_cost: the core {sum(parts):.0f} s (limit {core_limits[0]:g}), its slowest part "
              f"{max(parts):.1f} s (limit {core_limits[1]:g})", flush=True)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--compiler", default="g++", help="g++ or clang++-19, for the doors")
    parser.add_argument("--rounds", type=int, default=7, help="compilations of each header")
    parser.add_argument("--program-rounds", type=int, help="compilations of each program; default 3, 1 with --rounds 1")
    parser.add_argument("--what", choices=("doors", "programs", "all"), default="all")
    flags = parser.parse_args()
    rounds = flags.program_rounds or min(3, flags.rounds)
    with tempfile.TemporaryDirectory() as folder:
        def write(name, text):
            path = os.path.join(folder, name)
            pathlib.Path(path).write_text(text)
            return path
        if flags.what != "programs":
            measure_doors(flags.compiler, flags.rounds, write)
        if flags.what == "doors":
            return 0
        gcc = measure_programs("g++", rounds, write, folder)
        if not shutil.which("clang++-19"):
            print("clang++-19: skipped, not found")
            return 0
        clang = measure_programs("clang++-19", rounds, write, folder)
        worst = max(c / g for name in gcc for c, g in zip(clang[name], gcc[name]))
        print(f"include_cost: clang++-19 at most {worst:.2f} times g++ (limit {clang_factor})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
