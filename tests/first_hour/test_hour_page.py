"""The page of the hour: what it names is there."""

from __future__ import annotations

import re
from pathlib import Path

from clean_environment import ROOT


def test_every_named_test_and_page_exists():
    lines = (Path(__file__).parent / "README.md").read_text(encoding="utf-8").splitlines()
    rows = [line.split(" | ") for line in lines if line.startswith("|")][2:]
    assert {row[0].removeprefix("| ") for row in rows} == {"all", "practitioner", "researcher", "reader"}
    for *_, pages, test in rows:
        assert all((ROOT / page).is_file() for page in pages.split(", ")), pages
        file, name = re.fullmatch(r"`(\S+)::(\w+)` \|", test).groups()
        assert f"\ndef {name}(" in (ROOT / file).read_text(encoding="utf-8"), test
