# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Starting train_moe and reading what it says: shared by the scripts beside it. Run alone, it trains two steps."""
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

root = pathlib.Path(__file__).resolve().parent.parent.parent


def program(name="train_moe", room="examples"):
    """The built program; bench/run sets where. `room` is the folder of its sources."""
    folder = os.environ.get("BELAY_BUILD_DIR", str(root / "build/bench"))
    if name != "train_moe":
        subprocess.run(["ninja", "-C", folder, name], check=True, stdout=subprocess.DEVNULL)
    return os.path.join(folder, room, name)


class Run:
    """One train_moe in the background; tokens_per_s() waits for it."""

    def __init__(self, flags, cores=None):
        self.lines = tempfile.NamedTemporaryFile(suffix=".jsonl", delete=False)
        self.lines.close()
        command = [program(), "--json", self.lines.name, *map(str, flags)]
        if cores is not None:
            command = ["taskset", "-c", cores, *command]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL)

    def steps(self):
        if self.process.wait() != 0:
            sys.exit(f"train_moe failed with code {self.process.returncode}")
        with open(self.lines.name) as lines:
            steps = [json.loads(line) for line in lines]
        os.unlink(self.lines.name)
        return [step for step in steps if not step.get("summary")]

    def tokens_per_s(self):
        """Median over the steps after the first two, which warm up."""
        return statistics.median(step["tokens_per_s"] for step in self.steps()[2:])


if __name__ == "__main__":
    print(f"train_moe: {Run(['--steps', 4]).tokens_per_s():.0f} tokens/s")
