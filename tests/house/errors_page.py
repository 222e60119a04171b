#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Whether docs/reference/errors.md has every sentence of a throw and of a static_assert under include, and no other.

    tests/house/errors_page.py ROOT           fails with what is missing and what is no more
    tests/house/errors_page.py ROOT --planted does so for mistakes that it makes itself

A sentence is the text literals of one throw, static_assert, or call of a function named `fail` or `refuse`, with "..."
for what stands between them. The page's tables below "## Every sentence" list its start, as much as tells it from
others: parts in order, the last may be cut. A throw without a literal of its own is listed by its header instead, and a
static_assert without a sentence guards the library's own arithmetic. The text of a static_assert also stands in the
first line of a case of tests/compile_fail, or its header is named in `no_case`, with the reason.
"""
import pathlib
import re
import sys
import tempfile

TOKEN = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'|[A-Za-z_]\w*|\d[\w\']*|\s+|.', re.S)
NESTED = {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}
RAISERS = {"fail", "refuse"}
LETTERS = 12  # of a listed start, where the sentence has as many

# Sentences that no program of a user can bring about.
NO_CASE = {
    "backend/cuda": "headers of a device: tests/cuda compiles them",
    "backend/nccl/runtime_nccl.cuh": "the version of a library's headers",
    "backend/host/rendezvous/call_descriptor.hpp": "the library's own tables do not fit together any more",
    "comm/flight_recorder.hpp": "an internal table's size",
    "kernel/product.hpp": "refused by the arithmetic of a step before",
}


def tokens(text):
    line = 1
    for match in TOKEN.finditer(text):
        token = match.group(0)
        if not token.isspace() and not token.startswith(("//", "/*")):
            yield token, line
        line += token.count("\n")


def plain(text):
    text = text.replace("\\n", " ").replace('\\"', '"').replace("\\\\", "\\")
    return re.sub(r"\s+", " ", text).strip().lstrip(":;, ")


def letters(text):
    return sum(c.isalpha() for c in text)


def literals(statement):
    parts, adjacent = [], False
    for token in statement:
        if token[0] == '"':
            if adjacent:
                parts[-1] += token[1:-1]
            else:
                parts.append(token[1:-1])
        adjacent = token[0] == '"'
    return [p for part in parts for p in map(plain, part.split("...")) if p]


def sentences(root):
    """Of each throw, static_assert and raising call: (kind, header, line, parts)."""
    include = root / "include" / "belay"
    for path in sorted(p for p in include.rglob("*") if p.suffix in (".hpp", ".ipp", ".cuh")):
        header = str(path.relative_to(include))
        text = list(tokens(path.read_text()))
        for i, (token, line) in enumerate(text):
            raising = token in RAISERS and text[i + 1][0] == "("
            if not raising and token not in ("throw", "static_assert"):
                continue
            statement, depth = [], 0
            for following, _ in text[i + 1 :]:
                depth += NESTED.get(following, 0)
                if depth < 0 or (depth == 0 and following == ";"):
                    break
                statement.append(following)
                if raising and depth == 0:  # of a call its arguments
                    break
            parts = literals(statement)
            if raising and letters("".join(parts)) < LETTERS:
                continue  # a declaration, or a system call's name
            if statement and (parts or token == "throw"):
                yield "raise" if raising else token, header, line, parts


def rows(root):
    """First cells of the tables below "## Every sentence"."""
    page = (root / "docs/reference/errors.md").read_text()
    for row in page.partition("\n## Every sentence\n")[2].splitlines():
        cell = re.match(r"\| (`+) ?(.*?) ?\1 \|", row)
        if cell:
            yield cell.group(2)


def fits(row, parts):
    listed = [plain(p) for p in row.split("...") if plain(p)]
    at = 0
    for number, wanted in enumerate(listed):
        last = number + 1 == len(listed)
        while at < len(parts) and not (parts[at].startswith(wanted) if last else parts[at] == wanted):
            at += 1
        if at == len(parts):
            return False
        at += 1
    return letters(row) >= min(LETTERS, letters("".join(parts)))


def check(root):
    wrong, used, listed = [], set(), list(rows(root))
    cases = [
        re.compile(re.sub(r"^// expect: ", "", path.read_text().splitlines()[0]))
        for path in (root / "tests/compile_fail").glob("*.cpp")
    ]
    for kind, header, line, parts in sentences(root):
        told = letters("".join(parts)) >= 4
        found = [r for r in listed if (fits(r, parts) if told else r == header)]
        used.update(found)
        text = " ... ".join(parts)
        if not found:
            wrong.append(f"{header}:{line}: not on the page: {text if told else 'a throw without a sentence'}")
        if kind == "static_assert" and not any(header.startswith(h) for h in NO_CASE):
            if not any(case.search(text) for case in cases):
                wrong.append(f"{header}:{line}: no case of tests/compile_fail expects: {text}")
    wrong += [f"errors.md: nothing under include says: {row}" for row in listed if row not in used]
    wrong += [f"errors.md: listed twice: {row}" for row in sorted({r for r in listed if listed.count(r) > 1})]
    return wrong


def planted():
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        for name, text in {
            "include/belay/core/a.hpp": "void f() { if (bad) "
            'throw usage_error("slot " + n + " holds no handle at all", at); }\n'
            'void g() { throw other; }  // throw input_error("not said")\n'
            'static_assert(x, "a kernel is kept by value: "\n  "256 bytes");\n'
            'static_assert(y, "a sentence without a case");\nstatic_assert(z);\n'
            'void h() { fail("the header does not begin"); throw input_error("forgotten on the page", at); }\n',
            "docs/reference/errors.md": "| `before the tables` |\n\n## Every sentence\n\n"
            "| `slot ... holds no handle` | a | b |\n"
            "| `core/a.hpp` | a | b |\n| `a kernel is kept by` | a | b |\n| `a sentence without a case` | a | b |\n"
            "| `the header does not` | a | b |\n| `a sentence of yesterday` | a | b |\n",
            "tests/compile_fail/kernel.cpp": "// expect: kept by value\n",
        }.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
        found = check(root)
    expected = ("no case", "forgotten", "of yesterday")
    if len(found) != 3 or not all(any(word in line for line in found) for word in expected):
        return ["3 mistakes were planted: " + "; ".join(found)]
    return []


problems = planted() if "--planted" in sys.argv else check(pathlib.Path(sys.argv[1]))
print("\n".join(problems))
sys.exit(1 if problems else 0)
