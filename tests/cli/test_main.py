"""The frame of the command line: lean start, exit codes, one line per failure, JSON or table."""

from __future__ import annotations

import io
import json
import subprocess
import sys

import pytest

from gradwire import __version__
from gradwire.cli import main


def fails(capsys, arguments, code, message):
    assert main(arguments) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == message + "\n"


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"gradwire {__version__}\n"


@pytest.mark.parametrize(
    "arguments", [["--version"], ["--help"], ["codecs", "--help"], ["size", "-h"], ["demo", "-h"], ["lab", "-h"]]
)
def test_help_and_version_answer_without_torch(arguments):
    code = f"import sys; from gradwire.cli import main; print(main({arguments!r}), 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "0 False", done.stderr


def test_python_m_gradwire():
    done = subprocess.run([sys.executable, "-m", "gradwire", "--version"], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"gradwire {__version__}\n", "")


@pytest.mark.parametrize("missing", ["typer", "rich"])
def test_a_missing_package_is_named_with_its_command(missing, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, missing, None)
    message = f"gradwire: the command line needs {missing}, which is not installed; run: pip install typer rich"
    fails(capsys, ["codecs"], 1, message)


@pytest.mark.parametrize("command", ["codecs", "size", "demo", "lab"])
def test_every_help_ends_in_an_example(command, capsys):
    assert main([command, "--help"]) == 0
    text, _, options = capsys.readouterr().out.partition("\nOptions:")
    assert f"gradwire {command}" in text.rpartition("Example")[2]
    assert "--json" in options


def test_usage_errors(capsys):
    fails(capsys, ["nonsense"], 2, "gradwire: No such command 'nonsense'; see: gradwire --help")
    fails(capsys, ["size", "--model", "ncf"], 2, "gradwire: Missing option '--codec'; see: gradwire size --help")
    assert main(["demo", "--workers", "four"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("gradwire: Invalid value for '--workers': ")
    assert error.endswith("; see: gradwire demo --help\n")
    assert error.count("\n") == 1


def test_no_command_prints_help(capsys):
    assert main([]) == 0
    assert "Commands:" in capsys.readouterr().out


def test_parts_that_do_not_fit_together_are_a_wrong_request(capsys):
    arguments = ["size", "--model", "resnet20", "--codec", "powersgd", "--strategy", "all_gather"]
    message = (
        "gradwire: powersgd cannot run under all_gather: it runs its own rounds of exchanges. "
        "Leave the strategy at 'auto'."
    )
    fails(capsys, arguments, 2, message)


def test_an_unexpected_exception_is_one_line_and_a_traceback_on_request(capsys, monkeypatch, tmp_path):
    (tmp_path / "broken_nets.py").write_text("def small():\n    raise KeyError('weights')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    arguments = ["size", "--model", "broken_nets:small", "--codec", "topk"]
    message = (
        "gradwire: KeyError: 'weights' (this is a defect of gradwire or of your own module; "
        "set GRADWIRE_TRACEBACK=1 to see where)"
    )
    fails(capsys, arguments, 1, message)
    monkeypatch.setenv("GRADWIRE_TRACEBACK", "1")
    assert main(arguments) == 1
    assert "broken_nets.py" in capsys.readouterr().err


def test_json_when_piped_and_a_table_on_a_terminal(capsys, monkeypatch):
    assert main(["codecs"]) == 0
    assert isinstance(json.loads(capsys.readouterr().out), list)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "120")
    assert main(["codecs"]) == 0
    assert "what it does" in capsys.readouterr().out
    assert main(["codecs", "--json"]) == 0
    assert isinstance(json.loads(capsys.readouterr().out), list)


def test_a_reader_that_leaves_is_no_failure_with_a_traceback():
    command = f"{sys.executable} -m gradwire reproduce table2 | true"  # long gone when the first byte comes
    done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("", "")


def test_interrupt(capsys, monkeypatch):
    def stop(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("gradwire.core.codec.codecs.names", stop)
    fails(capsys, ["codecs"], 130, "gradwire: interrupted")


def test_infinity_becomes_null():
    from gradwire.cli.output import emit

    out, sys.stdout = sys.stdout, io.StringIO()
    try:
        emit({"a": (float("inf"), 1.5), 2: None}, True, lambda: "")
        text = sys.stdout.getvalue()
    finally:
        sys.stdout = out
    assert json.loads(text) == {"a": [None, 1.5], "2": None}
