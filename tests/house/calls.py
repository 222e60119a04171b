#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Whether docs/explanation/house.md follows its calls through files that are there, and how many each passes.

    tests/house/calls.py ROOT            prints the files of each call, and fails with what is wrong
    tests/house/calls.py ROOT --planted  does so for mistakes that it makes itself

A call is a section with a table of hops. The second cell of a hop is the file that it passes; a header and its .ipp are
one. The functions that the third cell begins with, before its colon, are in that file. MOST are the files that the
parts of some calls may pass: a call that takes more has become harder to follow.
"""
import pathlib
import re
import sys
import tempfile

PAGE = "docs/explanation/house.md"
MOST = {
    ("One all_reduce of 8 bytes",): 9,  # by a host::rank
    ("One all_reduce of 8 bytes", "By a belay::rank"): 11,
    ("One dispatch of a mixture of experts",): 11,
    ("One backward", "One commit"): 18,  # from what a layer adds to the token of the commit
    ("One gather",): 12,
}
HOP = re.compile(r"^\| \d+ \| (?P<file>[^|]*) \| (?P<does>.*) \|$")


def file_of(root, cell):
    """The file that a hop's second cell names, under include/belay or from the root on; None where it names none."""
    names = re.findall(r"`([\w./]+)`", cell)
    if not names:
        return None
    under = root / "include/belay" / names[0]
    return under if under.is_file() else root / names[0]


def calls_of(root):
    """Section titles with their hops: (line number, file, functions)."""
    calls, title = {}, ""
    for number, line in enumerate((root / PAGE).read_text().splitlines(), 1):
        if line.startswith("## "):
            title = line[3:]
        hop = HOP.match(line)
        if hop is None:
            continue
        said = re.match(r"^((?:`\w+`(?:, | and )?)+):", hop["does"])
        functions = re.findall(r"`(\w+)`", said[1]) if said else []
        calls.setdefault(title, []).append((number, file_of(root, hop["file"]), functions))
    return calls


def faults_of(root):
    faults, passed = [], {}
    calls = calls_of(root)
    for title, hops in calls.items():
        passed[title] = set()
        for number, file, functions in hops:
            at = f"{PAGE}:{number}"
            if file is None or not file.is_file():
                faults.append(f"{at}: no file is there that this hop names")
                continue
            passed[title].add(file.with_suffix(""))
            text = file.read_text()
            faults += [f"{at}: {file.relative_to(root)} has no {f}" for f in functions if not re.search(rf"\b{f}\b", text)]
    for titles, most in MOST.items():
        missing = [t for t in titles if t not in passed]
        faults += [f"{PAGE}: no section follows '{t}'" for t in missing]
        count = len(set().union(*(passed[t] for t in titles if t in passed)))
        if count > most:
            faults.append(f"{' and '.join(titles)}: {count} files, at most {most}")
    return faults, {title: len(files) for title, files in passed.items()}


def planted(root):
    """A page with three mistakes, and a call that has grown."""
    page = (root / PAGE).read_text()
    wrong = page.replace("`comm/group_operations.hpp`", "`comm/nowhere.hpp`", 1)
    wrong = wrong.replace("| `run_call`:", "| `walk_call`:", 1).replace("## One gather", "## One harvest", 1)
    more = "".join(f"| {n} | `comm/{name}.hpp` | is one more |\n" for n, name in enumerate(("p2p", "barrier", "mesh", "group", "rank"), 10))
    wrong = wrong.replace("| 9 | `parallel/experts/handles.hpp`", more + "| 9 | `parallel/experts/handles.hpp`", 1)
    with tempfile.TemporaryDirectory() as folder:
        copy = pathlib.Path(folder)
        (copy / PAGE).parent.mkdir(parents=True)
        (copy / PAGE).write_text(wrong)
        for name in ("include", "examples"):
            (copy / name).symlink_to(root / name)
        return faults_of(copy)[0]


def main():
    root = pathlib.Path(sys.argv[1]).resolve()
    if "--planted" in sys.argv[2:]:
        faults = planted(root)
        for fault in ("no file is there", "has no walk_call", "no section follows 'One gather'", "files, at most 11"):
            if not any(fault in found for found in faults):
                sys.exit(f"not found: {fault}\n" + "\n".join(faults))
        return
    faults, counts = faults_of(root)
    print("\n".join(f"{count:3} files: {title}" for title, count in counts.items()))
    if faults:
        sys.exit("\n".join(faults))


main()
