"""What comes from elsewhere is never run: no eval, no shell, no unchecked pickle; archives write nothing."""

from __future__ import annotations

import ast
import io
import json
import tarfile
import zipfile
from pathlib import Path

import pytest
from rich.table import Table

from gradwire.cli import output
from gradwire.core.records import CONTROL, Quantiles, Record
from gradwire.laboratory.bench.data import packed

ROOT = Path(__file__).parent.parent
SOURCES = [path for folder in ("src", "examples", "docs") for path in sorted((ROOT / folder).rglob("*.py"))]
NEVER = {"eval", "exec", "compile", "__import__"}
NEVER_OF = {
    "os": {"system", "popen"},
    "pickle": {"load", "loads", "Unpickler"},
    "marshal": {"load", "loads"},
    "shelve": {"open"},
    "yaml": {"load", "unsafe_load"},
}
# where one of these may stand, and why
ALLOWED = {
    ("src/gradwire/laboratory/bench/launch.py", "pickle.loads"): "the pipe of a process that we started ourselves",
}


def called(node):
    """The name of what is called, with what it is of: ``torch.load``."""
    function = node.func
    if isinstance(function, ast.Name):
        return function.id
    if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name):
        return f"{function.value.id}.{function.attr}"
    return f".{function.attr}" if isinstance(function, ast.Attribute) else ""


def constant(node):
    return node.value if isinstance(node, ast.Constant) else None


def dangers(tree):
    """What runs or unpacks something, by name."""
    for node in (n for n in ast.walk(tree) if isinstance(n, ast.Call)):
        name, given = called(node), {k.arg: k.value for k in node.keywords}
        of, _, method = name.rpartition(".")
        if name in NEVER or method in NEVER_OF.get(of, ()) or method in ("extractall", "extract"):
            yield name
        if "shell" in given:
            yield "shell="
        if name == "torch.load" and constant(given.get("weights_only")) is not True:
            yield "torch.load without weights_only=True"
        if "allow_pickle" in given and constant(given["allow_pickle"]) is not False:
            yield "allow_pickle="


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_nothing_is_run_or_unpickled(path):
    found = {(str(path.relative_to(ROOT)), name) for name in dangers(ast.parse(path.read_text()))}
    assert not found - ALLOWED.keys()


@pytest.mark.parametrize(
    "line",
    [
        "eval('1')",
        "os.system('x')",
        "subprocess.run('x', shell=True)",
        "pickle.load(file)",
        "torch.load(file)",
        "torch.load(file, weights_only=False)",
        "tarfile.open(x).extractall()",
        "np.load(x, allow_pickle=True)",
    ],
)
def test_the_look_at_the_sources_sees_it(line):
    assert list(dangers(ast.parse(line)))


def test_exceptions_are_still_needed():
    used = {(f, n) for f, _ in ALLOWED for n in dangers(ast.parse((ROOT / f).read_text()))}
    assert used >= ALLOWED.keys()


# ---------------------------------------------------------------- archives


def test_paths_in_archives_lead_nowhere(tmp_path):
    """Members that climb out, absolute ones and links: read by their last name, or not at all; nothing is written."""
    inside = tmp_path / "inside"
    inside.mkdir()
    secret = tmp_path / "secret"
    secret.write_bytes(b"not yours")
    with zipfile.ZipFile(inside / "a.zip", "w") as file:
        file.writestr("../../data", b"zipped")
        file.writestr(str(tmp_path / "absolute"), b"zipped")
    with tarfile.open(inside / "a.tar", "w") as file:
        member = tarfile.TarInfo("../../data")
        member.size = 6
        file.addfile(member, io.BytesIO(b"packed"))
        link = tarfile.TarInfo("link")
        link.type, link.linkname = tarfile.SYMTYPE, str(secret)
        file.addfile(link)
    before = sorted(tmp_path.rglob("*"))
    assert packed.named(inside / "a.zip", ["data"]) == {"data": b"zipped"}
    assert packed.named(inside / "a.tar", ["data"]) == {"data": b"packed"}
    assert packed.matching(inside / "a.tar", lambda path: path.name == "link") == {}
    assert sorted(tmp_path.rglob("*")) == before


# ---------------------------------------------------------------- what is shown

EVIL = "\x1b]0;title\x07\x1b[2J\u202e\x9b31mred<script>alert(1)</script>\n\t\\u001b"


def planted():
    """A record with something for a terminal in each of its texts."""
    quantiles = Quantiles(p20=1.0, p50=1.0, p80=1.0)
    texts = {"what": {EVIL: EVIL, "codec": [EVIL]}, "environment": {"cpu": EVIL}, "outcome": {"deep": {"er": EVIL}}}
    told = {"kind": EVIL, "command": EVIL, "time": EVIL, "commit": EVIL, "unit": EVIL}
    return Record(**told, **texts, dirty=False, quantiles=quantiles, samples=(1.0,))


def strings(value):
    if isinstance(value, dict):
        return [s for pair in value.items() for part in pair for s in strings(part)]
    return (
        [s for one in value for s in strings(one)]
        if isinstance(value, list)
        else [value]
        if isinstance(value, str)
        else []
    )


@pytest.mark.parametrize("ascii_only", [True, False])
def test_records_bring_nothing_that_a_terminal_acts_on(ascii_only):
    line = json.dumps(json.loads(planted().to_json()), ensure_ascii=ascii_only)
    found = strings(json.loads(Record.from_json(line).to_json()))
    assert len(found) > 10
    assert not [text for text in found if CONTROL.search(text)]
    assert sum("<script>alert(1)</script>\n\t\\u001b" in text for text in found) == 10  # all else is as it was


def test_names_are_no_markup(monkeypatch, capsys):
    """`[/bold]` in a name would else end with an error, and `[link=…]` in a link."""
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    table = Table("[bold]head")
    table.add_row("[/bold] [link=https://example.org]x[/link]")
    output.emit({}, False, lambda: table)
    shown = capsys.readouterr().out
    assert "[/bold] [link=https://example.org]x[/link]" in shown


def test_the_page_of_security_is_found():
    assert "SECURITY.md" in (ROOT / "CONTRIBUTING.md").read_text()
    told = (ROOT / "SECURITY.md").read_text()
    assert "weights_only=True" in told
    assert "tests/test_supply_chain.py" in told
