#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""What a compiler needs for the door headers, and for whole programs, beside the headers of the standard library.

Doors: -fsyntax-only of a file with one include, beside six headers of the standard library. Programs: -O2 of one
all_reduce on threads, of a main that only includes, of examples and of the trainer, header-only and with separate
compilation, beside the standard headers that 00_hello includes. They are compiled in turn, so that a machine that
speeds up or slows down does it to all; medians of user time, and memory, are printed. The core: each part of
belay/source.hpp, once. Consumer: the first build of 00_hello with its core in an empty folder, by the clock. Devices,
where there is nvcc: -O3 for one architecture of 09_on_a_gpu, of the trainer and of the core of belay::cuda.

Limits are seconds of a machine that compiles those standard headers in 0.7 s: what was measured is scaled to it. What
is over its limit ends the program with 1, but for --quick.
"""
import argparse
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from typing import NamedTuple

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
empty_main = '#include "belay/backend/host.hpp"\n#include "belay/belay.hpp"\nint main() {}\n'


class Limits(NamedTuple):
    """Seconds and MB of one compilation; None: shown alone."""
    seconds: float | None
    megabytes: float | None = None


# Of g++ -O2: header-only and separately compiled. Clang may take 1.2 times as long. Where the goal was not reached it
# stands beside a limit that is a little above what was.
programs = {
    "one all_reduce": (Limits(12), Limits(3, 600)),  # goal 8 s header-only
    "empty main": (Limits(None), Limits(3, 600)),  # goal 2.5 s
    "00_hello": (Limits(36, 1250), Limits(6, 600)),  # goal 1,150 MB header-only
    "01_plain": (Limits(40, 1450), Limits(10, 700)),  # goals 18 s and 1,150 MB; 600 MB
    "trainer": (None, Limits(13.5, 920)),  # goals 12 s and 600 MB
}
core_limits = 110.0, Limits(15, 900)  # all parts, and each
consumer_limit = 60.0
device_limits = {"09_on_a_gpu": 25.0, "trainer": 50.0}  # goals 15 and 25
device_core_limit = 90.0
clang_factor = 1.2
yardstick_seconds = 0.7


class Verdict:
    """What is over its limit."""

    def __init__(self):
        self.over = []

    def hold(self, what, measured, limit, unit):
        """Says a figure beside its limit."""
        if measured > limit:
            self.over.append(what)
        print(f"include_cost: {what} {measured:.{0 if unit == 'MB' else 1}f} {unit} (limit {limit:g})", flush=True)


class Cost(NamedTuple):
    """User seconds of a compilation, and the memory of its largest process."""
    seconds: float
    megabytes: float


common = ["-std=c++20", f"-I{root}/include", f"-I{root}/examples", f'-DBELAY_SOURCE_DIR="{root}"']


def cost(compiler, source, *flags):
    """That of one compilation, with all processes of the compiler."""
    running = subprocess.Popen([compiler, *common, *flags, source])
    _, status, used = os.wait4(running.pid, 0)
    running.returncode = os.waitstatus_to_exitcode(status)
    if running.returncode != 0:
        sys.exit(f"include_cost: {compiler} ended with {running.returncode} for {source}")
    return Cost(used.ru_utime, used.ru_maxrss / 1024)


def in_turn(rounds, *compilations):
    """The medians of several compilations, taken in turn."""
    costs = [[cost(*one) for one in compilations] for _ in range(rounds)]
    return [Cost(*map(statistics.median, zip(*column))) for column in zip(*costs)]


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
        mine, theirs = (one.seconds for one in in_turn(rounds, (compiler, source, "-fsyntax-only"),
                                                       (compiler, base, "-fsyntax-only")))
        ratios[header] = mine / theirs
        print(f"{header:22} {mine:.2f} s beside {theirs:.2f} s: {ratios[header]:.2f}", flush=True)
    umbrella = ratios.pop(headers[-1])
    slowest = max(ratios, key=ratios.get)
    print(f"include_cost: the slowest door, {slowest}, {ratios[slowest]:.2f} (limit 1.3), "
          f"the umbrella {umbrella:.2f} (limit 2.2)", flush=True)


def optimized(folder):
    return "-O2", "-c", "-o", os.path.join(folder, "out.o")


def yardstick(compiler, write):
    """The standard headers of 00_hello, which all is scaled by."""
    return write("yardstick.cpp", standard_headers(compiler, str(root / "examples/00_hello.cpp")))


def scaled(seconds, theirs):
    """Those of a machine that compiles the yardstick, which took `theirs` here, in its time."""
    return seconds * yardstick_seconds / theirs


def measure_programs(compiler, rounds, write, folder, verdict):
    """The seconds of each program, header-only and separately compiled."""
    print(f"{compiler} -std=c++20 -O2 -c, medians of {rounds}", flush=True)
    sources = {"one all_reduce": write("one_all_reduce.cpp", one_all_reduce),
               "empty main": write("empty_main.cpp", empty_main),
               "trainer": str(root / "examples/train_moe/host_trainer.cpp")}
    base = yardstick(compiler, write)
    found = {}
    for name, limits in programs.items():
        source = sources.get(name, str(root / f"examples/{name}.cpp"))
        ways = [("separately compiled", (separate,), limits[1])]
        if limits[0] is not None:
            ways.insert(0, ("header-only", (), limits[0]))
        *mine, theirs = in_turn(rounds, *((compiler, source, *macro, *optimized(folder)) for _, macro, _ in ways),
                                (compiler, base, *optimized(folder)))
        found[name] = [one.seconds for one in mine]
        print(f"{name:15} " + ", ".join(f"{way} {one.seconds:5.2f} s ({one.seconds / theirs.seconds:4.1f} x) and "
                                        f"{one.megabytes:.0f} MB" for (way, _, _), one in zip(ways, mine)) +
              f", the standard headers {theirs.seconds:.2f} s", flush=True)
        for (way, _, limit), one in zip(ways, mine):
            if limit.seconds is not None and "clang" not in compiler:
                verdict.hold(f"{name}, {way},", scaled(one.seconds, theirs.seconds), limit.seconds, "s")
            if limit.megabytes is not None and "clang" not in compiler:
                verdict.hold(f"{name}, {way},", one.megabytes, limit.megabytes, "MB")
    parts, theirs = parts_of(compiler, "belay/source.hpp", write, folder, (separate, *optimized(folder)))
    print(f"{'source.hpp':15} in {len(parts)} parts: " + ", ".join(f"{one.seconds:.1f}" for one in parts) + " s",
          flush=True)
    if "clang" not in compiler:
        verdict.hold("the core", scaled(sum(one.seconds for one in parts), theirs), core_limits[0], "s")
        verdict.hold("its slowest part", scaled(max(one.seconds for one in parts), theirs), core_limits[1].seconds, "s")
        verdict.hold("its largest part", max(one.megabytes for one in parts), core_limits[1].megabytes, "MB")
    return found


def parts_of(compiler, header, write, folder, flags):
    """The cost of each part of a core, once, and the yardstick's median seconds, compiled before each."""
    source = write("source.cu" if header.endswith("cuh") else "source.cpp", f'#include "{header}"\n')
    beside = "g++" if header.endswith("cuh") else compiler
    base = yardstick(beside, write)
    text = (root / "include" / header).read_text()
    count = max(int(part) for part in re.findall(r"BELAY_SOURCE_PART == (\d+)", text))
    parts, theirs = [], []
    for part in range(1, count + 1):
        theirs.append(cost(beside, base, *optimized(folder)).seconds)
        parts.append(cost(compiler, source, f"-DBELAY_SOURCE_PART={part}", *flags))
    return parts, statistics.median(theirs)


def measure_consumer(write, folder, verdict):
    """The first build of one source and its core, by the clock."""
    base = yardstick("g++", write)
    write("CMakeLists.txt", "cmake_minimum_required(VERSION 3.25)\nproject(consumer LANGUAGES CXX)\n"
          f"add_subdirectory({root} belay)\nadd_executable(consumer {root}/examples/00_hello.cpp)\n"
          "target_link_libraries(consumer PRIVATE belay::belay)\n")
    build = os.path.join(folder, "build")
    ninja = ["-G", "Ninja"] if shutil.which("ninja") else []
    theirs = [cost("g++", base, *optimized(folder)).seconds]
    begin = time.monotonic()
    for command in (["cmake", "-S", folder, "-B", build, *ninja, "-DCMAKE_BUILD_TYPE=Release"],
                    ["cmake", "--build", build, "--parallel", "2"]):
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=dict(os.environ, CCACHE_DISABLE="1"))
    took = time.monotonic() - begin
    theirs.append(cost("g++", base, *optimized(folder)).seconds)
    verdict.hold("a consumer's first build, two jobs,", scaled(took, statistics.mean(theirs)), consumer_limit, "s")


def measure_devices(rounds, write, folder, verdict):
    """What nvcc takes of programs for a device, with a core."""
    print(f"nvcc -O3 -arch=sm_90, medians of {rounds}", flush=True)
    flags = ("-O3", "-arch=sm_90", "-DNDEBUG", separate, "-DBELAY_CUDA_SEPARATE_COMPILATION", "-c", "-o",
             os.path.join(folder, "out.o"))
    base = yardstick("g++", write)
    sources = {"09_on_a_gpu": "examples/09_on_a_gpu.cu", "trainer": "examples/train_moe/cuda_trainer.cu"}
    for name, source in sources.items():
        mine, theirs = in_turn(rounds, ("nvcc", str(root / source), *flags), ("g++", base, *optimized(folder)))
        verdict.hold(f"{name} for a device", scaled(mine.seconds, theirs.seconds), device_limits[name], "s")
    parts, theirs = parts_of("nvcc", "belay/cuda_source.cuh", write, folder, flags)
    verdict.hold("the core of a device", scaled(sum(one.seconds for one in parts), theirs), device_core_limit, "s")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--compiler", default="g++", help="g++ or clang++-19, for the doors")
    parser.add_argument("--rounds", type=int, default=7, help="compilations of each header")
    parser.add_argument("--program-rounds", type=int, help="compilations of each program; default 3, 1 with --rounds 1")
    parser.add_argument("--what", choices=("doors", "programs", "consumer", "devices", "all"), default="all")
    parser.add_argument("--quick", action="store_true", help="once each, without a verdict")
    flags = parser.parse_args()
    if flags.quick:
        flags.rounds = 1
    rounds = flags.program_rounds or min(3, flags.rounds)
    verdict = Verdict()

    def asked(what):
        return flags.what in (what, "all")
    with tempfile.TemporaryDirectory() as folder:
        def write(name, text):
            path = os.path.join(folder, name)
            pathlib.Path(path).write_text(text)
            return path
        if asked("doors"):
            measure_doors(flags.compiler, flags.rounds, write)
        if asked("programs"):
            gcc = measure_programs("g++", rounds, write, folder, verdict)
            if shutil.which("clang++-19"):
                clang = measure_programs("clang++-19", rounds, write, folder, verdict)
                worst = max(c / g for name in gcc for c, g in zip(clang[name], gcc[name]))
                print(f"include_cost: clang++-19 at most {worst:.2f} times g++ (limit {clang_factor})")
            else:
                print("clang++-19: skipped, not found")
        if asked("consumer"):
            measure_consumer(write, folder, verdict)
        if asked("devices"):
            if shutil.which("nvcc"):
                measure_devices(rounds, write, folder, verdict)
            else:
                print("nvcc: skipped, not found")
    if verdict.over and not flags.quick:
        print("include_cost: over their limits: " + "; ".join(what.rstrip(",") for what in verdict.over), flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
