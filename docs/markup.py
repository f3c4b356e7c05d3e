"""Docstrings as Markdown: formulas and examples in fences, arguments as a list.

Docstrings write formulas as ``.. math::`` and examples as ``>>>``. Markdown shows neither. GitHub renders a fence named
``math``, and so does the site (`hooks.py`).
"""

from __future__ import annotations

import re
import textwrap

DIRECTIVE = re.compile(r"^(?P<indent> *)\.\. math::(?P<rest>.*)$")
SECTION = re.compile(r"^(?P<name>Args|Returns|Raises|Attributes|Example|Examples):$")
ARGUMENT = re.compile(r"^(?P<name>\*{0,2}\w+)(?: \([^)]*\))?: ")
OPTION = re.compile(r"  # doctest: .*$")
KEYWORD = re.compile(r"^(Wire|Departs from)\b")


def fenced(text: str) -> str:
    """Put each ``.. math::`` and each example into a fence.

    >>> print(fenced("The mean,\\n\\n.. math::  x\\n           + y\\n\\nis exact."))
    The mean,
    <BLANKLINE>
    ```math
    x
    + y
    ```
    <BLANKLINE>
    is exact.
    """
    lines, out, at = text.splitlines(), list[str](), 0
    open_fence = False
    while at < len(lines):
        line = lines[at]
        at += 1
        if line.lstrip().startswith("```"):
            open_fence = not open_fence
        found = None if open_fence else DIRECTIVE.match(line)
        if found:
            indent, body = found["indent"], [found["rest"].strip()]
            while at < len(lines) and lines[at].strip() and lines[at].startswith(indent + " "):
                body.append(lines[at].strip())
                at += 1
            out += _fence("math", [b for b in body if b], indent)
        elif not open_fence and line.lstrip().startswith(">>> "):
            indent, body = line[: len(line) - len(line.lstrip())], [line]
            while at < len(lines) and lines[at].strip():
                body.append(lines[at])
                at += 1
            out += _fence("pycon", [OPTION.sub("", b.removeprefix(indent)) for b in body], indent)
        else:
            out.append(line)
    return "\n".join(out)


def _fence(language: str, body: list[str], indent: str) -> list[str]:
    return [f"{indent}```{language}", *(f"{indent}{line}" for line in body), f"{indent}```"]


def described(text: str) -> str:
    """A docstring with sections as Markdown: arguments become a list, an example a fence.

    >>> print(described("Keep some.\\n\\nArgs:\\n    ratio: the share\\n        kept.\\n    seed: of the draw."))
    Keep some.
    <BLANKLINE>
    - `ratio`: the share kept.
    - `seed`: of the draw.
    """
    parts, name, body = list[str](), "", list[str]()
    for line in [*textwrap.dedent(text).strip().splitlines(), "Returns:"]:  # the last one ends what is open
        heading = SECTION.match(line)
        if heading is None:
            body.append(line)
            continue
        parts.append(_section(name, textwrap.dedent("\n".join(body)).strip()))
        name, body = heading["name"], []
    return "\n\n".join(part for part in parts if part)


def _section(name: str, body: str) -> str:
    if name not in ("Args", "Attributes"):
        return fenced(_paragraphs(body))
    items = list[str]()
    for line in body.splitlines():
        found = ARGUMENT.match(line)
        if found:
            items.append(f"- `{found['name']}`: {line[found.end() :]}")
        elif items and line.strip():
            items[-1] += f" {line.strip()}"
    return "\n".join(items)


def _paragraphs(text: str) -> str:
    """What is on the wire, and how a codec differs from its paper, begin paragraphs of their own."""
    lines = list[str]()
    for line in text.splitlines():
        if KEYWORD.match(line):
            if lines and lines[-1]:
                lines.append("")
            line = KEYWORD.sub(r"**\1**", line, count=1).replace("**Wire**:", "**Wire:**")
        lines.append(line)
    return "\n".join(lines)
