"""`gradwire new-codec`: what it writes passes at once, is found by its name, and overwrites nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from gradwire.cli import main

SRC = Path(__file__).parent.parent.parent / "src"


def gradwire(folder, *arguments):
    """In a process of its own: a new codec must not stay in this one's registry."""
    return python(folder, "-W", "error", "-m", "gradwire", *arguments)


def python(folder, *arguments):
    there = {**os.environ, "PYTHONPATH": str(SRC)}
    return subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=there, capture_output=True, text=True, timeout=200
    )


@pytest.fixture
def package(tmp_path, capsys):
    assert main(["new-codec", "my_int8", "--dir", str(tmp_path)]) == 0
    told = json.loads(capsys.readouterr().out)
    folder = tmp_path / "gradwire-my-int8"
    assert told == {
        "folder": str(folder),
        "files": ["README.md", "gradwire_my_int8.py", "pyproject.toml", "tests/test_my_int8.py"],
        "next": [
            f"cd {folder}",
            "gradwire check gradwire_my_int8:MyInt8",
            "python -m pytest",
            "python -m pip install -e .",
        ],
    }
    return folder


def test_its_tests_pass_and_are_those_of_the_check(package):
    few = "zero_comes or by_hand or bad_parameters"
    done = python(package, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", few)
    assert "6 passed" in done.stdout, done.stdout + done.stderr


def test_its_entry_point_leads_to_the_codec(package, monkeypatch):
    import tomllib

    project = tomllib.loads((package / "pyproject.toml").read_text())
    ((name, value),) = project["project"]["entry-points"]["gradwire.codecs"].items()
    assert project["tool"]["setuptools"]["py-modules"] == [value.partition(":")[0]]
    code = f"""
import gradwire, gradwire.core.registry as registry
from importlib.metadata import EntryPoint
registry.entry_points = lambda group: [EntryPoint({name!r}, {value!r}, group)]
print(gradwire.codec("my_int8(levels=3)"))
"""
    assert EntryPoint(name, value, "gradwire.codecs").module == "gradwire_my_int8"
    assert python(package, "-W", "error", "-c", code).stdout == "MyInt8(levels=3)\n"


def test_commands_see_what_is_imported(package):
    place = ["--model", "resnet20", "--batch", "32", "--gpus", "4", "--bandwidth", "1gbit", "--backward", "9ms"]
    costs = ["--codec", "my_int8", "--encode-ms", "2", "--decode-ms", "1"]
    commands = [
        ["codecs", "my_int8"],
        ["size", "--model", "resnet20", "--codec", "my_int8"],
        ["bench", "encode", "--codec", "my_int8", "--size", "1001", "--repeats", "1", "--seconds", "0.1"],
        ["predict", *place, *costs],
        ["advise", "--any", *place, *costs],
    ]
    code = f"""
from gradwire.cli import main
print([main(arguments) for arguments in {commands}])
print([main([*arguments, "--import", "gradwire_my_int8"]) for arguments in {commands}])
"""
    done = python(package, "-W", "error", "-c", code)
    unseen, *lines, seen = done.stdout.splitlines()
    assert (unseen, seen) == ("[2, 2, 2, 2, 2]", "[0, 0, 0, 0, 0]"), done.stderr
    assert "".join(lines).count('"Costs of my_int8: as given on the command line."') == 2
    assert done.stderr.startswith("gradwire: no codec named 'my_int8'; known: ")


def test_processes_of_a_command_see_it_too(package, monkeypatch):
    code = "import gradwire, os; os.environ['GRADWIRE_IMPORT'] = 'gradwire_my_int8'; print(gradwire.codec('my_int8'))"
    assert python(package, "-W", "error", "-c", code).stdout == "MyInt8(levels=127)\n"


@pytest.mark.parametrize(
    "name, message",
    [
        *(
            (bad, "a codec's name has 2 to 40 small letters, digits and single underscores and begins with a letter, "
             f"as in my_int8; got {bad!r}")
            for bad in ("", "x", "My", "my-int8", "8bit", "my__int8", "a.b", "../up", "class", "x" * 41, "end_")
        ),
        ("topk", "there is a codec 'topk' already; choose another name"),
    ],
)  # fmt: skip
def test_names_that_cannot_be_taken(capsys, tmp_path, name, message):
    assert main(["new-codec", name, "--dir", str(tmp_path)]) == 2
    assert capsys.readouterr().err == f"gradwire: new-codec: {message}\n"
    assert not list(tmp_path.iterdir())


def test_nothing_is_overwritten_and_no_folder_is_guessed(capsys, package):
    text = (package / "README.md").read_text()
    assert main(["new-codec", "my_int8", "--dir", str(package.parent)]) == 2
    message = f"gradwire: new-codec: {str(package)!r} is there already, and nothing is overwritten; choose another name"
    assert capsys.readouterr().err == message + "\n"
    assert (package / "README.md").read_text() == text
    assert main(["new-codec", "other", "--dir", "/nowhere"]) == 2
    message = "gradwire: new-codec: there is no folder '/nowhere'; make it first, or name another with --dir"
    assert capsys.readouterr().err == message + "\n"


@pytest.mark.usefixtures("people")
def test_on_a_terminal_it_says_what_to_do_next(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["new-codec", "mine_two"]) == 0
    assert (
        capsys.readouterr().out
        == """\
Written:
  gradwire-mine-two/gradwire_mine_two.py
  gradwire-mine-two/tests/test_mine_two.py
  gradwire-mine-two/pyproject.toml
  gradwire-mine-two/README.md

Next:
  cd gradwire-mine-two
  gradwire check gradwire_mine_two:MineTwo
  python -m pytest
  python -m pip install -e .
"""
    )


@pytest.mark.parametrize(
    "module, message",
    [
        (
            "nope",
            "there is no module 'nope' in {here} or on the Python path; check its spelling, or install its package",
        ),
        ("broken", "'broken': No module named 'not_installed'; check its spelling, or install its package"),
        ("./mine.py", "'./mine.py' is no module's name; write it as in an import statement, such as mine"),
        ("a b", "'a b' is no module's name; write it as in an import statement, such as my_package.codecs"),
    ],
)
def test_modules_that_cannot_be_imported(capsys, tmp_path, monkeypatch, module, message):
    (tmp_path / "broken.py").write_text("import not_installed")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert main(["codecs", "--import", module]) == 2
    assert capsys.readouterr().err == f"gradwire: --import: {message.format(here=tmp_path)}\n"


def test_a_package_that_cannot_be_loaded_is_told_and_the_rest_stays(monkeypatch):
    import gradwire
    from gradwire.core.codec import codecs

    points = [EntryPoint("gone", "no_such_module:Gone", "gradwire.codecs")]
    monkeypatch.setattr("gradwire.core.registry.entry_points", lambda group: points)
    monkeypatch.setattr(codecs, "_broken", set())
    with pytest.warns(UserWarning, match="cannot be loaded") as caught:
        names = gradwire.codec_names()
    assert [str(one.message) for one in caught] == [
        "gradwire: the codec 'gone' cannot be loaded from 'no_such_module:Gone' (ModuleNotFoundError: No module named "
        "'no_such_module'); mend or uninstall it"
    ]
    assert "topk" in names
    assert gradwire.codec_names() == names  # told once
