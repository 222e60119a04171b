# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The pages of docs beside Doxygen's of the headers: copies whose links Doxygen follows.

A head of docs/reference that names a header links to the header's page, which has all symbols of it.
"""
import html.parser
import os
import re

FENCE = re.compile(r"^( *```.*?^ *```[^\n]*$)", re.S | re.M)
CODE = re.compile(r"(`+[^`]+`+)")
BOLD = re.compile(r"\*\*((?:`[^`]+`|[^*`])+)\*\*")  # Doxygen takes none around code
ONE_TICK = re.compile(r"(?<!`)`([^`]+)`(?!`)")
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^()\s]+)\)")
HEADER = re.compile(r"`(belay/[\w/]+\.(?:hpp|cuh))`")


def slug(head):
    """The anchor of a heading, as code forges make it."""
    return re.sub(r"[^\w\- ]", "", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", head).lower()).strip().replace(" ", "-")


def page_of(path):
    """The name of a page: docs/howto/use_belay.md is page_docs_howto_use_belay."""
    return "page_" + re.sub(r"\W", "_", str(path.with_suffix("")))


def anchor(page, name):
    return f"{page}_{re.sub(r'[^a-z0-9_]', '_', name)}"


def symbols(header):
    """The page of a header; Doxygen takes no `.cuh` for a file's name."""
    file = header.rsplit("/", 1)[-1]
    return f"@ref {header}" if file.endswith(".hpp") else file.replace("_", "__").replace(".", "_8") + ".html"


def copied(root, path, headers, pages):
    """The text of page `path` of `root`; `headers` have pages of their own, and so have `pages`."""
    own = page_of(path)
    text = (root / path).read_text()
    named = set()

    def target(link):
        file, _, part = link.partition("#")
        if re.match(r"[a-z]+:", link):
            return None
        to = path.parent / file if file else path
        to = type(path)(os.path.normpath(to))
        if to not in pages:
            return ""
        return "@ref " + (anchor(page_of(to), part) if part else page_of(to))

    def link(found):
        image, words, to = found.groups()
        where = target(to)
        if image or where is None:
            return found[0]
        return f"[{words.replace('`', '')}]({where})" if where else words  # Doxygen shows the ticks of a link

    def heading(found):
        marks, head = found.groups()
        name = anchor(own, slug(head)) if named else own
        label = "" if name in named else f" {{#{name}}}"  # the first of several, as on forges
        named.add(name)
        linked = HEADER.findall(head) if path.parts[:2] == ("docs", "reference") else []
        more = "".join(f"\n\n[All symbols of {header}]({symbols(header)})" for header in linked if header in headers)
        return f"{marks} {CODE.sub(lambda code: code[0].strip('`'), head)}{label}{more}"

    out = []
    for part in FENCE.split(text):
        if not FENCE.match(part):
            part = LINK.sub(link, re.sub(r"^(#+) (.*)$", heading, part, flags=re.M))
            part = BOLD.sub(r"<b>\1</b>", part)
            part = ONE_TICK.sub(r"``\1``", part)  # in single ones Doxygen reads an apostrophe as their end
        out.append(part)
    return "".join(out)


def copy_pages(root, work, headers):
    """Writes README.md and the pages of docs to `work`, and returns what Doxygen's settings get for them."""
    pages = {path.relative_to(root) for path in [*(root / "docs").rglob("*.md"), *root.glob("*.md")]}
    for path in sorted(pages):
        to = work / "pages" / (page_of(path) + ".md")
        to.parent.mkdir(parents=True, exist_ok=True)
        to.write_text(copied(root, path, headers, pages))
    pictures = " ".join(str(path) for path in (root / "docs").rglob("*.png"))
    return (
        f"INPUT = include/belay pages\nFILE_PATTERNS += *.md\nUSE_MDFILE_AS_MAINPAGE = page_README.md\n"
        f"STRIP_FROM_PATH = {work}/include\nHTML_EXTRA_FILES = {pictures}\nTOC_INCLUDE_HEADINGS = 3\n"
    )


class Links(html.parser.HTMLParser):
    """What a page links to, and what can be linked to in it."""

    def __init__(self, text):
        super().__init__()
        self.to, self.names = [], set()
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        of = dict(attributes)
        self.names |= {of[key] for key in ("id", "name") if of.get(key)}
        self.to += [of[key] for key in ("href", "src") if of.get(key)]


def broken_links(folder):
    """The links of the pages of docs in `folder` that lead nowhere in it."""
    pages = {path.name: Links(path.read_text()) for path in folder.glob("*.html")}
    wrong = []
    for name, page in sorted(pages.items()):
        if not name.startswith(("page_", "index")):
            continue  # Doxygen's own
        for to in page.to:
            file, _, part = to.partition("#")
            if re.match(r"[a-z]+:", to):
                continue
            if not (folder / (file or name)).exists():
                wrong.append(f"{name}: there is no {to}")
            elif part and (file or name) in pages and part not in pages[file or name].names:
                wrong.append(f"{name}: there is no #{part} in {file or name}")
    return wrong
