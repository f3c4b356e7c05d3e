"""What MkDocs is taught for this site: the pages outside docs/, links between them, and formulas as MathML.

MathML needs no script and no font from elsewhere, so the site works offline.
"""

from __future__ import annotations

import posixpath
import re
import sys
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from markdown import Extension, Markdown
from markdown.preprocessors import Preprocessor
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

sys.path.insert(0, str(Path(__file__).parent))
from markup import fenced

ROOT = Path(__file__).resolve().parent.parent
# the place of a page in the repository -> in the site; what is not here keeps its place
MOVED = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
}
COPIED = (
    "results/*.jsonl",
    "results/superseded/*.jsonl",
    "results/README.md",
    "examples/*.py",
    "examples/engines/*.*",
    "tests/faults_job.py",
    "tests/planted_bugs/__init__.py",
)
LINK = re.compile(r"(?<=\]\()(?!https?://|#|mailto:)([^)#\s]+)")
LIMITS = re.compile(r"\\(sum|max|min)_")  # in a formula of its own, the index is below
ARG = re.compile(r"\\arg(?![a-zA-Z])")  # latex2mathml does not know it
BIG = re.compile(r"\\[Bb]ig\s*(\\?[(|)\[\]{}])")  # brackets of a size; browsers find it by themselves


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Docstrings go through the same Markdown as pages."""
    config.markdown_extensions.append(Docstrings())  # type: ignore[arg-type]
    config.mdx_configs["pymdownx.superfences"] = {
        "custom_fences": [{"name": "math", "class": "formula", "format": formula}]
    }
    return config


def formula(source: str, language: str, css_class: str, options: Any, md: Markdown, **_: Any) -> str:
    """A fence named ``math`` as MathML."""
    return f'<div class="{css_class}">{mathml(source)}</div>'


def mathml(source: str) -> str:
    """TeX as MathML."""
    sides = iter(("left", "right") * source.count("ig"))  # a bar does not say which side it is on

    def stretched(bracket: re.Match[str]) -> str:
        side = "left" if bracket[1][-1] in "([{" else "right" if bracket[1][-1] in ")]}" else next(sides)
        return f"\\{side}{bracket[1]}"

    tex = BIG.sub(stretched, ARG.sub(r"\\operatorname{arg}", " ".join(source.split())))
    found = convert(LIMITS.sub(r"\\\1\\limits_", tex), display="block")
    return re.sub(r"<mo([^>]*)>(&#x0007C;|&#x02016;)</mo>", r'<mo\1 lspace="0" rspace="0">\2</mo>', found)  # bars


class Docstrings(Extension):
    """Formulas and examples as docstrings write them."""

    def extendMarkdown(self, md: Markdown) -> None:
        md.preprocessors.register(_Fenced(md), "docstrings", 40)  # before fences are looked for


class _Fenced(Preprocessor):
    def run(self, lines: list[str]) -> list[str]:
        return fenced("\n".join(lines)).split("\n")


# -------------------------------------------------------------------- pages and links


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Pages and records that lie beside docs/."""
    paths = [*MOVED, *(str(p.relative_to(ROOT)) for pattern in COPIED for p in sorted(ROOT.glob(pattern)))]
    for path in paths:
        files.append(File.generated(config, place(path), abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links are written for the repository; lead them to the same thing in the site."""
    if page.is_homepage:
        page.meta["hide"] = ["navigation"]  # room for what a terminal of 120 columns shows
    inside = posixpath.dirname(page.file.src_uri)
    origin = {site: path for path, site in MOVED.items()} | {"results/records.md": "results/README.md"}
    path = origin.get(page.file.src_uri, f"docs/{page.file.src_uri}")

    def moved(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(path), link[1]))
        return posixpath.relpath(place(target), inside or ".")

    return LINK.sub(moved, markdown)


def place(path: str) -> str:
    """Where something of the repository is in the site."""
    if path in ("docs", "results"):
        return {"docs": "index.md", "results": "results/records.md"}[path]
    if path == "results/README.md":
        return "results/records.md"
    return MOVED.get(path, path.removeprefix("docs/"))
