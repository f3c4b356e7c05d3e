"""Write the pages that are outputs: docs/codecs.md, docs/cli.md, and the demo's run in README.md.

    python docs/render.py            # write them
    python docs/render.py --check    # exit with 1 if one of them is out of date

The run shown in the README is rebuilt from the newest record of a demo in results/. To show a new one:

    gradwire demo --record results/demo_<cpu>_<date>.jsonl && python docs/render.py
"""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

from rich.console import Console

from gradwire.bench import demo
from gradwire.cli.app import command
from gradwire.cli.codecs import describe
from gradwire.cli.demo import page
from gradwire.core.codec import codecs
from gradwire.core.records import Record, load

ROOT = Path(__file__).resolve().parent.parent
BEGIN, END = "<!-- demo:begin -->\n", "<!-- demo:end -->\n"
GENERATED = "<!-- written by docs/render.py; run `make docs` after a change -->\n"
WIDTH = 120  # columns of the terminal that the README shows


def main(arguments: list[str]) -> int:
    outdated = [path for path, text in pages().items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    if "--check" in arguments:
        for path in outdated:
            print(f"{path.relative_to(ROOT)} is out of date; run: make docs", file=sys.stderr)
        return 1 if outdated else 0
    for path in outdated:
        path.write_text(pages()[path], encoding="utf-8")
        print(f"wrote {path.relative_to(ROOT)}")
    return 0


def pages() -> dict[Path, str]:
    """Every page, as it should be."""
    return {
        ROOT / "docs" / "codecs.md": codec_page(),
        ROOT / "docs" / "cli.md": cli_page(),
        ROOT / "README.md": readme(),
    }


# -------------------------------------------------------------------- codecs.md


def codec_page() -> str:
    ours = [codecs.build(n) for n in codecs.names() if codecs.cls(n).__module__.startswith("gradwire.")]
    listed = [describe(codec) for codec in ours]
    lines = [GENERATED, "# Codecs\n"]
    lines.append(
        "Bits per element: what one worker hands over of a 1024x1024 float32 matrix, among 8 workers, traced.\n"
    )
    lines.append("| codec | family | bits/element | payloads combine by | memory | strategies |")
    lines.append("|---|---|---|---|---|---|")
    for one in listed:
        cells = (f"[`{one['name']}`](#{one['name']})", one["family"], f"{one['bits_per_element']:.4g}")
        how = (one["traits"]["combine"], one["memory"], ", ".join(one["strategies"]) or "its own rounds")
        lines.append(f"| {' | '.join((*cells, *how))} |")
    return "\n".join(lines) + "\n" + "".join(_codec_section(one) for one in listed)


def _codec_section(one: dict[str, Any]) -> str:
    parameters = ", ".join(f"`{k}={v!r}`" for k, v in one["parameters"].items()) or "none"
    claims = ", ".join(f"{k} {v:.4g}" if isinstance(v, float) else k for k, v in _claims(one["traits"]).items())
    return (
        f"\n## {one['name']}\n\n{one['summary']}\n\n- parameters: {parameters}\n- claims: {claims}\n"
        f"- paper: {one['paper']}\n"
    )


def _claims(traits: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in traits.items() if k not in ("combine", "memory") and v is not None and v is not False}


# -------------------------------------------------------------------- cli.md


def cli_page() -> str:
    group = command()
    sections = [("gradwire", group), *((f"gradwire {name}", sub) for name, sub in group.commands.items())]
    return f"{GENERATED}\n# Command line\n" + "".join(_help(title, entry) for title, entry in sections)


def _help(title: str, entry: Any) -> str:
    context = entry.make_context(title, [], resilient_parsing=True, terminal_width=100)
    return f"\n## {title}\n\n```text\n{entry.get_help(context).rstrip()}\n```\n"


# -------------------------------------------------------------------- README.md


def readme() -> str:
    before, rest = (ROOT / "README.md").read_text(encoding="utf-8").split(BEGIN)
    after = rest.split(END)[1]
    path, records = newest()
    return before + BEGIN + demo_block(path, records) + END + after


def newest() -> tuple[Path, list[Record]]:
    """The file whose last demo is the latest, and its records."""
    found = [(path, load(path)) for path in sorted((ROOT / "results").glob("demo_*.jsonl"))]
    if not found:
        sys.exit("no results/demo_*.jsonl; make one: gradwire demo --record results/demo_<cpu>_<date>.jsonl")
    return max(found, key=lambda pair: pair[1][-1].time)


def demo_block(path: Path, records: list[Record]) -> str:
    """The terminal's output again, and where its numbers come from."""
    screen = Console(file=io.StringIO(), width=WIDTH, color_system=None)
    screen.print(page(demo.from_records(records)))
    assert isinstance(screen.file, io.StringIO)
    shown = "\n".join(line.rstrip() for line in screen.file.getvalue().splitlines()).strip("\n")
    last = records[-1]
    where, state = last.environment, " with uncommitted changes" if last.dirty else ""
    return (
        f"```text\n$ gradwire demo\n{shown}\n```\n"
        f"[Record](results/{path.name}) of {last.time[:10]}: `{last.command}`, commit `{last.commit[:12]}`{state}, "
        f"{where['cpu']}, {where['cores']} cores, {where['os']}, Python {where['python']}, torch {where['torch']}, "
        f"{where['backend']}.\n"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
