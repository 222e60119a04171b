#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Runs Doxygen over the public headers: every public symbol has a comment, and no comment is malformed.

    tests/house/doxygen.py ROOT WORK            fails with each warning that docs/doxygen_false_warnings.txt does
                                                not list
    tests/house/doxygen.py ROOT WORK --planted  finds the mistakes that it makes itself
    tests/house/doxygen.py ROOT WORK --html     makes WORK/html too, with the pages of docs, whose links it follows

Public is a header without "IWYU pragma: private". Doxygen reads a copy of them in which the house's habits are spelled
out: a comment `///` speaks for the declarations below it up to an empty line, and for members that it names in
backticks; a comment behind a declaration is that declaration's; the comment that a header opens with is that of the
class with its name; `= default`, `= delete`, destructors, aliases, overrides and deduction guides speak for themselves.
Lines keep their numbers. Of concepts, of which Doxygen says nothing, the script says what lacks a comment.
"""
import pathlib
import re
import shutil
import subprocess
import sys

import doxygen_pages

TOKEN = re.compile(
    r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'|[A-Za-z_]\w*|#(?:\\\n|[^\n])*|\s+|.', re.S
)
SCOPE = re.compile(r"^(inline )?(namespace|class|struct|union|extern) ")
CLASS = re.compile(r"^(class|struct|union) ")
FIELD = re.compile(r"(\w+) ?(\[[^\]]*\])?( ?= .*| ?\{.*)?$")
ENUM = re.compile(r"^enum ")
# Declarations that say all.
ITSELF = re.compile(
    r"= (default|delete)$|^using \w+ = |^using [\w:]+$|\boverride\b|^friend [^{]*$"
    r"|^(explicit )?\w+ ?\([^{]*\) -> "
    r"|^((explicit|virtual|constexpr|BELAY_HD|\[\[.*?\]\]) )*"
    r"(~|(?P<own>\w+) ?\((const )?(?P=own)(<[^()]*>)?&&? ?\w*\)|\w+& operator= ?\((const )?\w+&&? ?\w*\))"
)


def head(statement):
    """A statement without its template parameters and constraints, in single spaces."""
    text = re.sub(r"\s+", " ", "".join(statement)).strip()
    text = text.removeprefix("} ")  # the end of the namespace before
    while text.startswith("template"):
        depth = 0
        for at, c in enumerate(text):
            depth += {"<": 1, ">": -1}.get(c, 0)
            if c == ">" and depth == 0:
                break
        text = text[at + 1 :].strip()
    if text.startswith("requires"):
        found = re.search(r"\b(class|struct|union)\b", text)
        text = text[found.start() :] if found else text
    return text


def opening(text):
    """The first paragraph of the comment that a header opens with."""
    lines = text.splitlines()[1:]
    comment = []
    for line in lines:
        if line.startswith("// IWYU") or (not comment and line == "//"):
            continue
        if not line.startswith("// ") or line.startswith("//   "):
            break
        comment.append(line[3:])
    return " ".join(comment)


def spelled_out(text, noun, undocumented):
    """The text with all comments where Doxygen looks for them. Concepts without one, of which it says nothing, are
    added to `undocumented` with their line."""
    tokens = TOKEN.findall(text)
    whole = opening(text)
    out, scopes, statement, outer, about = [], ["scope"], [], [], [""]
    group, fresh, start, parens = "", False, None, 0

    def end():
        nonlocal statement, start
        words = head(statement)
        if start is not None and words and scopes[-1] == "scope":
            if words.startswith("concept ") and not group:
                undocumented.append(("".join(out[:start]).count("\n") + 1, words.split()[1]))
            if ITSELF.search(words):
                out[start] = "/** Says what it is. */ " + out[start]
            elif group and not fresh_at_start:
                out[start] = "/** " + group + " */ " + out[start]
            elif not fresh_at_start and (field := FIELD.search(words)) and f"`{field[1]}`" in about[-1]:
                out[start] = "/** " + about[-1] + " */ " + out[start]
            elif not group and not fresh_at_start and whole and is_noun.match(words):
                out[start] = "/** " + whole + " */ " + out[start]
        statement, start = [], None

    fresh_at_start = False
    is_noun = re.compile(rf"(class|struct) (\[\[.*?\]\] ?)?(BELAY_OBLIGATION )?{noun}\b")
    for number, token in enumerate(tokens):
        out.append(token)
        here = len(out) - 1
        inside = scopes[-1] in ("opaque", "requires")
        if token.isspace():
            if token.count("\n") > 1 and start is None:
                group = ""
            if statement:
                statement.append(" ")
            continue
        if token.startswith("#"):
            continue
        if token.startswith("//"):
            line_start = "".join(tokens[max(0, number - 12) : number]).rsplit("\n", 1)[-1].strip()
            if inside:
                continue
            if line_start and not token.startswith("///"):
                out[here] = "///<" + token[2:]
            elif token.startswith("///") and not token.startswith("///<") and not line_start:
                group = (group + " " if fresh else "") + token[3:].strip()
                fresh = True
            continue
        if token.startswith("/*"):
            continue
        if start is None and token not in "{};":
            start, fresh_at_start, fresh = here, fresh, False
        if token in "([":
            parens += 1
        if token in ")]":
            parens -= 1
        if token == "{":
            words = head(statement)
            if inside or parens:
                scopes.append("opaque")
            elif SCOPE.search(words + " ") and "(" not in re.sub(r"\[\[.*?\]\]|alignas ?\([^)]*\)", "", words):
                of_class = group or (whole if is_noun.match(words) else "")
                end()
                outer.append(group)
                about.append(of_class if CLASS.match(words) else "")
                group = ""
                scopes.append("scope")
            elif words.startswith("requires") and re.search(r"\brequires ?(\([^()]*(\([^()]*\)[^()]*)*\))?$", words):
                scopes.append("requires")
            else:
                scopes.append("enum" if ENUM.search(words) else "opaque")
            statement.append(token)
            if scopes[-1] == "scope":
                statement = []
            continue
        if token == "}":
            closed = scopes.pop() if len(scopes) > 1 else "scope"
            statement.append(token)
            if closed == "scope":
                group, statement, start = outer.pop() if outer else "", ["}"], None
                about[1:] = about[1:-1]
                continue
            if closed == "requires":
                continue
            following = next((t for t in tokens[number + 1 :] if not t.isspace() and not t.startswith("//")), "")
            if scopes[-1] == "scope" and not parens and following not in (";", ",", "{", "=", ".", ":", "(", ")"):
                end()
            continue
        if token == ";" and scopes[-1] == "scope" and not parens:
            end()
            continue
        if token == ":" and scopes[-1] == "scope" and head(statement) in ("public", "private", "protected"):
            group, statement, start = "", [], None
            continue
        statement.append(token)
    return "".join(out)


# Doxygen looks into a namespace that has a comment.
NAMESPACES = """/** Belay: parallelism templates for trainers of language models. */
namespace belay {
/** Ranks of one machine, as threads or processes. */
namespace host {}
/** Ranks of an MPI job. */
namespace mpi {}
/** Memory, streams and a kit of a GPU. */
namespace cuda {}
/** Collectives of GPUs over NCCL. */
namespace nccl {}
/** Arithmetic as functors, for host and device. */
namespace kernel {}
/** Ranks that plan a run, and move nothing. */
namespace rehearsal {}
/** A rank alone. */
namespace single_rank {}
/** Files of tensors that other libraries read. */
namespace safetensors {}
/** Pipeline schedules. */
namespace schedule {}
}
"""


def documented_by_the_first(warning, lines):
    """Whether it is about `b` of `int a = 0, b = 0;`: Doxygen gives a comment to `a` alone."""
    found = re.match(r"(.+):(\d+): warning: Member (\w+) \(variable\)", warning)
    line = lines(found[1])[int(found[2]) - 1] if found else ""
    return bool(found) and re.search(r", " + found[3] + r"\b", line) is not None and not line.strip().startswith("//")


def warnings(root, work, html):
    """What Doxygen says of a copy of the public headers of `root`, without the false warnings that docs lists."""
    shutil.rmtree(work, ignore_errors=True)
    said, headers = [], set()
    for path in sorted((root / "include").rglob("*")):
        if path.suffix in (".hpp", ".cuh") and "// IWYU pragma: private" not in path.read_text():
            copy = work / path.relative_to(root)
            copy.parent.mkdir(parents=True, exist_ok=True)
            text = path.read_text().replace("belay::inline BELAY_ABI", "belay")
            concepts = []
            copy.write_text(spelled_out(text, path.stem, concepts))
            name = path.relative_to(root)
            headers.add(str(path.relative_to(root / "include")))
            said += [f"{name}:{line}: warning: Concept {concept} is not documented." for line, concept in concepts]
    (work / "include/belay/namespaces.hpp").write_text(NAMESPACES)
    settings = (root / "docs/Doxyfile").read_text() + f"OUTPUT_DIRECTORY = {work}\n"
    settings += "GENERATE_HTML = YES\n" if html else "GENERATE_HTML = NO\nGENERATE_XML = YES\n"
    if html:
        settings += doxygen_pages.copy_pages(root, work, headers)
    ran = subprocess.run(["doxygen", "-"], input=settings, cwd=work, text=True, capture_output=True)
    said += [line.replace(f"{work}/", "") for line in ran.stderr.splitlines() if line.strip()]
    if ran.returncode != 0 and not said:
        said = [f"doxygen ended with {ran.returncode}"]
    if html:
        said += doxygen_pages.broken_links(work / "html")
    listed = (root / "docs/doxygen_false_warnings.txt").read_text().splitlines()
    listed = [line for line in listed if line[:1] not in ("", "#")]
    wrong = [line for line in said if not any(line.endswith(": warning: " + false) for false in listed)]
    wrong += [
        f"docs/doxygen_false_warnings.txt: Doxygen no longer says: {false}"
        for false in listed
        if not any(line.endswith(": warning: " + false) for line in said)
    ]

    def lines(name):
        return (root / name).read_text().splitlines()

    return [line for line in wrong if not documented_by_the_first(line, lines)]


HEADER = """// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A noun with all that the house's habits say.
#pragma once
namespace belay {
struct noun {
  /// How many, and how often.
  int count = 0;
  int times = 0, rounds = 0;
  bool ready = false;  // at once

  noun() = default;
  noun(const noun&) = delete;
  ~noun();

  int forgotten = 0;
  /// Has \\nothing and `code`.
  template <class T>
  requires requires(T t) { t.x(); }
  int told(T t) const {
    return t.x();
  }
  int told_too() const { return 2; }

  int forgotten_too() const { return 1; }

 private:
  int hidden = 0;
};
/// Has `named` and more.
struct with_fields {
  int named = 0;
  int not_named{1};
};

template <class T>
concept forgotten_concept = true;

struct forgotten_class { int of_forgotten_class = 0; };

int forgotten_function();
}  // namespace belay
"""


def planted(root, work):
    """Symbols without a comment, an unknown command, and a false warning that is listed and not given."""
    shutil.rmtree(work, ignore_errors=True)
    for name, text in {
        "include/belay/noun.hpp": HEADER,
        "include/belay/part.hpp": '// IWYU pragma: private, include "belay/noun.hpp"\nstruct not_public {};\n',
        "docs/Doxyfile": (root / "docs/Doxyfile").read_text(),
        "docs/doxygen_false_warnings.txt": "# a comment\nnever given\n",
    }.items():
        path = work / "root" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    found = sorted(set(warnings(work / "root", work / "copy", False)))
    expected = ("forgotten (", "forgotten_too", "forgotten_class is", "of_forgotten_class", "forgotten_function")
    expected += ("forgotten_concept", "nothing", "never given", " not_named")
    missed = [word for word in expected if not any(word in line for line in found)]
    others = [line for line in found if not any(word in line for word in expected)]
    return [f"not found: {word}" for word in missed] + [f"not planted: {line}" for line in others]


if __name__ == "__main__":
    root, work = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve()
    problems = planted(root, work) if "--planted" in sys.argv else warnings(root, work, "--html" in sys.argv)
    print("\n".join(problems))
    sys.exit(1 if problems else 0)
