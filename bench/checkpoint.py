#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Checkpoints beside the medium: state written by checkpoint_writer until it is on the medium, and read back verified
by checkpoint_reader with the file dropped from the page cache, each in turn with dd around the page cache; and what
checkpoints cost a run that trains, in turn with one without. Medians."""
import argparse
import contextlib
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile

from support.trainer_runs import program

RATIO, LOSS = 0.8, 3  # limits: of dd's speed, and per cent


def ours(what, folder, mib):
    """Seconds."""
    command = [program("checkpoint_files", "bench"), what, folder, str(mib)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def dd(*operands):
    """Seconds, as dd itself counts them: without the start of a process."""
    plain = {**os.environ, "LC_ALL": "C"}
    said = subprocess.run(["dd", *operands], check=True, capture_output=True, text=True, env=plain)
    return float(re.search(r"copied, ([0-9.e+-]+) s", said.stderr).group(1))


def drop(path):
    """From the page cache; it is on the medium already."""
    descriptor = os.open(path, os.O_RDONLY)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)


def files(directory, flags):
    """MiB/s of each sample, each contender first as often."""
    speeds = {name: [] for name in ("write", "dd_write", "read", "dd_read")}
    folder, copy = os.path.join(directory, "step-00000001"), os.path.join(directory, "copy")
    written = os.path.join(folder, "parameters-00000.safetensors")
    # The bytes that dd writes lie in memory, as the state does.
    with tempfile.NamedTemporaryFile(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as source:
        def write():
            shutil.rmtree(folder, ignore_errors=True)
            speeds["write"].append(flags.mib / ours("write", folder, flags.mib))

        def dd_write():
            with contextlib.suppress(FileNotFoundError):
                os.unlink(copy)
            speeds["dd_write"].append(
                flags.mib / dd(f"if={source.name}", f"of={copy}", "bs=16M", "oflag=direct", "conv=fsync"))

        def dd_read():
            drop(written)
            speeds["dd_read"].append(flags.mib / dd(f"if={written}", "of=/dev/null", "bs=16M", "iflag=direct"))

        def read():
            speeds["read"].append(flags.mib / ours("read", folder, flags.mib))

        write()  # warm
        shutil.copyfile(written, source.name)
        dd_write()
        for name in ("write", "dd_write"):
            speeds[name].clear()
        for sample in range(flags.samples):
            order = [write, dd_write], [read, dd_read]
            for contenders in order:
                for each in contenders if sample % 2 == 0 else reversed(contenders):
                    each()
    os.unlink(copy)
    shutil.rmtree(folder)
    return speeds


def training(directory, ranks, flags):
    """Steps per second with checkpoints and without."""
    command = [program("checkpoint_training", "bench"), directory, ranks, flags.steps, flags.every, flags.rounds]
    return json.loads(subprocess.run(map(str, command), check=True, capture_output=True, text=True).stdout)


def lost_percent(saved, plain, flags):
    """What a checkpoint takes longer, of what so many steps and it take: a run of a few steps more has none for them."""
    of_one = (flags.steps / saved - flags.steps / plain) / (flags.steps // flags.every)
    return 100 * of_one / (flags.every / plain + of_one)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--directory", default=".", help="on the medium that is measured")
    parser.add_argument("--mib", type=int, default=1024, help="of state, a multiple of 16")
    parser.add_argument("--samples", type=int, default=7, help="of each, written and read")
    parser.add_argument("--steps", type=int, default=125, help="of each run that trains: not over with a checkpoint")
    parser.add_argument("--every", type=int, default=50, help="steps between checkpoints")
    parser.add_argument("--rounds", type=int, default=5, help="of both runs in turn")
    parser.add_argument("--json", help="also write the results to this file")
    flags = parser.parse_args()
    if flags.steps < flags.every:
        parser.error(f"--steps {flags.steps} has no checkpoint with --every {flags.every}")
    results, enough = {"mib": flags.mib, "every": flags.every}, True
    with tempfile.TemporaryDirectory(prefix="belay-checkpoint-", dir=flags.directory) as directory:
        results["mib_per_s"] = files(directory, flags)
        for name, words in (("write", "written and on the medium"), ("read", "read and verified")):
            own, peer = (statistics.median(results["mib_per_s"][key]) for key in (name, f"dd_{name}"))
            results[f"{name}_ratio"] = own / peer
            enough = enough and own >= RATIO * peer
            print(f"checkpoint: {flags.mib} MiB {words}: {own:.0f} MiB/s, dd {peer:.0f}: {own / peer:.2f} of its speed "
                  f"(limit {RATIO})", flush=True)
        for ranks in range(1, min(2, os.cpu_count() or 1) + 1):
            runs = training(directory, ranks, flags)
            saved, plain = (statistics.median(runs[key]) for key in ("with", "without"))
            lost = lost_percent(saved, plain, flags)
            results[f"training_{ranks}"] = {**runs, "lost_percent": lost}
            enough = enough and lost <= LOSS
            print(f"checkpoint: {ranks} rank{'s' if ranks > 1 else ''}, one every {flags.every} steps: {saved:.2f} "
                  f"steps/s, without {plain:.2f}: {lost:.1f} % lost (limit {LOSS} %)", flush=True)
    if flags.json:
        with open(flags.json, "w") as out:
            json.dump(results, out)
    if not enough:
        sys.exit(1)


if __name__ == "__main__":
    main()
