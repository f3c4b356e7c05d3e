"""One self-contained HTML page: sections of text, tables and pictures that answer the pointer and the keyboard.

Style and script are inlined, pictures are drawn by the script from JSON in the page, and nothing is loaded from
anywhere: the page says so to the browser, which enforces it. Without the script the same numbers are there as tables.
Text is escaped wherever it comes from; in paragraphs ``**bold**`` and ```code``` are understood.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, TypeAlias

from gradwire.laboratory.report import layout
from gradwire.laboratory.report.chart import Bars, Chart, HeatMap, Picture
from gradwire.laboratory.report.export import table as table_of
from gradwire.laboratory.report.view import view

POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
)

EARLY = 'document.documentElement.classList.add("scripted");'  # so that what is not chosen is never laid out


@dataclass(frozen=True)
class Text:
    """Paragraphs, or a list of points."""

    lines: Sequence[str]
    points: bool = False
    lead: bool = False  # what is said first, in larger letters


@dataclass(frozen=True)
class Table:
    """Lines of cells. The first columns hold words, the others numbers, which are set right."""

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""
    words: int = 1  # columns, up to 6


@dataclass(frozen=True)
class Item:
    """What is shown for one combination of choices."""

    values: Sequence[str]
    blocks: Sequence[Block]


@dataclass(frozen=True)
class Choice:
    """Several of a kind, one at a time: the reader chooses by the values of `keys`."""

    keys: Sequence[str]
    items: Sequence[Item]
    start: int = 0  # the item shown first


@dataclass(frozen=True)
class Fold:
    """What is there, but shown only when the reader opens it."""

    summary: str
    blocks: Sequence[Block]


@dataclass(frozen=True)
class Section:
    """A heading and what follows it; `key` is its address in the page. Without `open`, the reader unfolds it."""

    key: str
    title: str
    blocks: Sequence[Block]
    gist: str = ""  # beside the heading: what is inside
    open: bool = False


Block: TypeAlias = Text | Table | Choice | Fold | Chart | HeatMap | Bars


def of_pictures(title: str, pictures: Sequence[Picture]) -> str:
    """A page of pictures alone."""
    return render(title, [Section("pictures", "", pictures, open=True)])


def render(title: str, sections: Sequence[Section], *, subtitle: str = "") -> str:
    """The whole page."""
    hues = layout.hues(_pictures([b for s in sections for b in s.blocks]))
    under = f'<p class="subtitle">{inline(subtitle)}</p>' if subtitle else ""
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n{styles()}<script>{EARLY}</script>\n</head>\n<body>\n"
        f"<header><h1>{escape(title)}</h1>{under}</header>\n"
        f"<main>\n{''.join(_section(s, hues) for s in sections)}</main>\n"
        f"<script>\n{asset('page.js')}</script>\n</body>\n</html>\n"
    )


def styles(scope: str = "") -> str:
    """The page's style elements; with a `scope`, such as ``".answer"``, the page's own rules hold in there alone."""
    rules = f"{scope} {{\n{asset('page.css')}}}\n" if scope else asset("page.css")
    return (
        f'<style>\n{rules}</style>\n<style id="picture-style">\n{_colours()}{asset("picture.css")}</style>\n'
        f"<style>\n{_dark()}</style>\n"
    )


def escape(text: str) -> str:
    """Text for HTML, also between quotes."""
    return html.escape(text, quote=True)


def inline(text: str) -> str:
    """Escaped text with bold and code."""
    text = re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))
    return re.sub(r"\*\*(.+?)\*\*", r"<strong>\1</strong>", text)


def embedded(value: Any) -> str:
    """JSON that cannot end the single-quoted attribute it stands in, whatever the texts say."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character in "<>&'\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def asset(name: str) -> str:
    """A file that comes with the package."""
    return files("gradwire.laboratory.report").joinpath("assets", name).read_text(encoding="utf-8")


# -------------------------------------------------------------------- blocks


def _section(section: Section, hues: dict[str, int]) -> str:
    heading = f"<h2>{escape(section.title)}</h2>" if section.title else ""
    heading += f' <span class="gist">{inline(section.gist)}</span>' if section.gist else ""
    inside = _blocks(section.blocks, hues)
    body = f"{heading}\n{inside}" if section.open else _folded(heading, inside, "fold chapter")
    return f'<section id="{escape(section.key)}">\n{body}</section>\n'


def _folded(summary: str, inside: str, kind: str = "fold") -> str:
    """Closed until it is clicked; the script opens all for printing, and the one that the address names."""
    return f'<details class="{kind}"><summary>{summary}</summary>\n{inside}</details>\n'


def _blocks(blocks: Sequence[Block], hues: dict[str, int]) -> str:
    return "".join(_block(block, hues) for block in blocks)


def _block(block: Block, hues: dict[str, int]) -> str:
    if isinstance(block, Text):
        return _text(block)
    if isinstance(block, Table):
        return _table(block)
    if isinstance(block, Fold):
        return _folded(inline(block.summary), _blocks(block.blocks, hues))
    return _choice(block, hues) if isinstance(block, Choice) else figure(block, hues)


def _text(text: Text) -> str:
    if text.points:
        return "<ul>" + "".join(f"<li>{inline(line)}</li>" for line in text.lines) + "</ul>\n"
    opening = '<p class="lead">' if text.lead else "<p>"
    return "".join(f"{opening}{inline(line)}</p>\n" for line in text.lines)


def _table(table: Table) -> str:
    caption = f"<caption>{inline(table.caption)}</caption>" if table.caption else ""
    heads = "".join(f'<th scope="col">{escape(h)}</th>' for h in table.headings)
    rows = "".join(f"<tr>{_cells(row)}</tr>\n" for row in table.rows)
    return (
        f'<div class="scroll" tabindex="0" role="group" aria-label="{escape(table.caption or "table")}">'
        f'<table class="w{table.words}">{caption}<thead><tr>{heads}</tr></thead>\n<tbody>{rows}</tbody></table></div>\n'
    )


def _cells(row: Sequence[str]) -> str:
    """The first one names the line."""
    return f'<th scope="row">{escape(row[0])}</th>' + "".join(f"<td>{escape(cell)}</td>" for cell in row[1:])


def _choice(choice: Choice, hues: dict[str, int]) -> str:
    items = "".join(
        f"<div class=\"item\" data-values='{embedded(list(item.values))}'>"
        f"{_heading(item)}{_blocks(item.blocks, hues)}</div>\n"
        for item in choice.items
    )
    keys = embedded(list(choice.keys))
    return f'<div class="choice" data-keys=\'{keys}\' data-start="{choice.start}">\n{items}</div>\n'


def _heading(item: Item) -> str:
    """Seen where the choice is not: without the script, and on paper. A picture has its own."""
    if isinstance(item.blocks[0], Chart | HeatMap | Bars):
        return ""
    return f"<h3>{escape(', '.join(v for v in item.values if v != '-'))}</h3>\n"


def figure(picture: Picture, hues: dict[str, int]) -> str:
    """A picture as a part of a page, which the page's script draws; `hues` are those of all its pictures."""
    headings, rows = table_of(picture)
    subtitle = f'<p class="subtitle">{inline(picture.subtitle)}</p>' if picture.subtitle else ""
    notes = "".join(f"<p>{inline(note)}</p>" for note in picture.notes)
    return (
        f"<figure class=\"picture\" data-view='{embedded(view(picture, hues))}'><figcaption>"
        f"<h3>{escape(picture.title)}</h3>{subtitle}</figcaption>\n"
        '<div class="legend"></div>\n<div class="canvas"><svg></svg></div>\n'
        f'<div class="notes">{notes}</div>\n'
        f"<details open><summary>Numbers</summary>{_table(Table(headings, rows))}</details></figure>\n"
    )


def _pictures(blocks: Sequence[Block]) -> Iterator[Picture]:
    """All pictures, those in choices too."""
    for block in blocks:
        if isinstance(block, Choice):
            for item in block.items:
                yield from _pictures(item.blocks)
        elif isinstance(block, Fold):
            yield from _pictures(block.blocks)
        elif isinstance(block, Chart | HeatMap | Bars):
            yield block


# -------------------------------------------------------------------- colours


def _colours() -> str:
    fixed = f"--ink:{layout.INK};--muted:{layout.MUTED};--faint:{layout.FAINT};--ground:#ffffff;"
    ratio = f"--good:{layout.GOOD};--bad:{layout.BAD};"
    return f":root{{{fixed}{ratio}{_numbered(layout.COLOURS, 'c')}{_numbered(layout.PART_COLOURS, 'p')}}}\n"


def _dark() -> str:
    fixed = "--ink:#e8eaed;--muted:#9aa4af;--faint:#30363d;--ground:#14171b;--good:#3d8fc9;--bad:#d9722e;"
    colours = f"{fixed}{_numbered(layout.DARK_COLOURS, 'c')}{_numbered(layout.DARK_PARTS, 'p')}"
    return f"@media screen and (prefers-color-scheme: dark){{:root{{{colours}}}}}\n"


def _numbered(colours: Sequence[str], name: str) -> str:
    return "".join(f"--{name}{number}:{colour};" for number, colour in enumerate(colours))
