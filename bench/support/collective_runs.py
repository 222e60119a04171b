# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Running the benchmark of collectives and reading its JSON: shared by the scripts beside it."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

root = pathlib.Path(__file__).resolve().parent.parent.parent


def program(name):
    """A built benchmark; bench/run sets where the build is."""
    folder = os.environ.get("BELAY_BUILD_DIR", str(root / "build/bench"))
    subprocess.run(["ninja", "-C", folder, f"bench_{name}"], check=True, stdout=subprocess.DEVNULL)
    return os.path.join(folder, "bench", f"bench_{name}")


def collectives(flags, quiet=True):
    """The results of one run as a list; its table is shown unless quiet. Nothing where it failed."""
    with tempfile.NamedTemporaryFile(suffix=".json") as lines:
        command = [program("collectives"), "--json", lines.name, *map(str, flags)]
        run = subprocess.run(command, stdout=subprocess.PIPE if quiet else None, stderr=subprocess.PIPE, text=True)
        if run.returncode != 0:
            print(f"{' '.join(command)}: code {run.returncode}\n{run.stderr}", file=sys.stderr)
            return None
        with open(lines.name) as text:
            return json.load(text)


if __name__ == "__main__":
    print(json.dumps(collectives(["--max", "1K", "--factor", 8]), indent=1))
