#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Reads what train_moe --tensorboard writes with TensorBoard's own package, and compares it with the JSON lines.

events.py TRAIN_MOE WORK_FOLDER

Returns 77, which skips the test, where Python has no package tensorboard."""

import json
import pathlib
import shutil
import struct
import subprocess
import sys

from pages import MODEL


def main():
    try:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    except ImportError:
        print("skipped: there is no Python package tensorboard")
        return 77
    train_moe, work = sys.argv[1], pathlib.Path(sys.argv[2])
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    (work / "model.json").write_text(json.dumps(MODEL))
    (work / "text").write_text("the same few words, again and again, " * 40)
    lines = []
    for steps, more in ((3, ()), (5, ("--resume",))):
        subprocess.run([train_moe, "--model", work / "model.json", "--data", work / "text", "--mesh", "pp=1", "--sequence",
                        "16", "--micro-batches", "2", "--micro-batch-size", "2", "--steps", str(steps), "--checkpoint",
                        work / "saved", "--tensorboard", work / "events", "--json", work / "lines",
                        "--checkpoint-every", "3", *more], check=True, stdout=subprocess.DEVNULL)
        lines += [json.loads(line) for line in (work / "lines").read_text().splitlines()]
    steps = [line for line in lines if "loss" in line and "step" in line]
    events = EventAccumulator(str(work / "events"), size_guidance={"scalars": 0, "tensors": 0})
    events.Reload()
    wrong = []
    if len(list((work / "events").iterdir())) != 2:
        wrong.append("a resumed run adds a file")
    for tag in ("loss", "grad_norm", "tokens_per_s", "bubble"):
        read = {each.step: each.value for each in events.Scalars(tag)}
        written = {line["step"]: struct.unpack("f", struct.pack("f", line[tag]))[0] for line in steps}
        if read != written:
            wrong.append(f"{tag}: {read}, not {written}")
    if not any("sample" in tag for tag in events.Tags()["tensors"]):
        wrong.append(f"no sample among the texts {events.Tags()['tensors']}")
    for line in wrong:
        print(line)
    print(f"{len(events.Tags()['scalars'])} tags of {len(steps)} steps: {len(wrong)} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
