"""The researcher: a codec of one's own, from the template to an installed package, by the lines of the tutorial."""

from __future__ import annotations

import sys

from clean_environment import play, run, typed

PAGE = "docs/own-codec.md"
BEGIN, CHECK, MEASURE = "1. Begin with one that works", "4. Check it", "6. Measure it"
# so that it is quick; of an option that is given twice the last counts
QUICK = {
    "bench": ["--size", "1001", "--seconds", "0.05", "--repeats", "1"],
    "predict": ["--model", "resnet20", "--backward", "9ms"],
}


def test_own_codec(installed, tmp_path):
    lines = [line for heading in (BEGIN, CHECK, MEASURE) for line in typed(PAGE, heading)]
    assert [line[1] for line in lines] == ["new-codec", "gradwire-my-int8", "check", "size", "bench", "predict"]
    commands = [[*line, *QUICK.get(line[1], ())] for line in lines]
    written, checked, sized, encoded, predicted = play(installed, tmp_path, commands)
    assert written["files"] == ["README.md", "gradwire_my_int8.py", "pyproject.toml", "tests/test_my_int8.py"]
    assert checked["codecs"] == ["my_int8", "my_int8(levels=7)"]
    assert 8 < sized["bits_per_element"] < 8.1
    assert encoded
    assert "my_int8" in {row["codec"] for row in predicted["predictions"]}
    assert any(note.startswith("Costs of my_int8: measured on this machine's CPU") for note in predicted["notes"])

    package, site = tmp_path / "gradwire-my-int8", tmp_path / "site"
    options = ("--no-deps", "--no-index", "--no-build-isolation", "--target", site)
    run(sys.executable, "-m", "pip", "install", *options, package)
    [known] = play(installed, tmp_path, [["gradwire", "codecs", "my_int8"]], PYTHONPATH=str(site))
    assert known["spec"] == "my_int8"
