"""The command line. One file per command; everything heavy is imported inside the command's function.

Output is JSON with ``--json`` or when it goes to a file or pipe, a table on a terminal. A failure is one line on
stderr: exit code 2 if the request was wrong, 1 if something failed, 130 after Ctrl-C. With ``GRADWIRE_TRACEBACK=1`` the
traceback follows.
"""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

from gradwire.core.errors import ConfigError, GradwireError, GradwireWarning, Incompatible, MissingExtra, UnknownName

TRACEBACK = "GRADWIRE_TRACEBACK"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    try:
        return _run(sys.argv[1:] if arguments is None else list(arguments))
    except KeyboardInterrupt:
        return _fail("interrupted", 130)
    except GradwireError as problem:
        return _fail(str(problem), 2 if isinstance(problem, ConfigError | UnknownName | Incompatible) else 1, problem)
    except OSError as problem:
        name = f" {str(problem.filename)!r}" if problem.filename else ""
        remedy = f"check the path, its permissions and the space left; {TRACEBACK}=1 shows where"
        return _fail(f"the system refused{name} ({problem.strerror or problem}); {remedy}", 1, problem)
    except MemoryError as problem:
        return _fail("there is not enough memory for this; ask for something smaller", 1, problem)
    except Exception as problem:
        hint = f"this is a defect of gradwire or of your own module; set {TRACEBACK}=1 to see where"
        return _fail(f"{type(problem).__name__}: {problem} ({hint})", 1, problem)


def _run(arguments: list[str]) -> int:
    try:
        import rich  # noqa: F401
        import typer
    except ImportError as missing:
        raise MissingExtra(
            f"gradwire: the command line needs {missing.name}, which is not installed; run: pip install typer rich"
        ) from missing
    from gradwire.cli.app import command

    # click's UsageError, wherever this version of typer keeps it
    usage_error: type[Exception] = typer.BadParameter.__mro__[1]
    try:
        with _plain_warnings():
            code = command()(arguments or ["--help"], prog_name="gradwire", standalone_mode=False)
    except typer.Abort:
        raise KeyboardInterrupt from None
    except usage_error as problem:
        return _fail(_usage(problem, arguments), 2)
    sys.stdout.flush()  # here, where a closed pipe is still caught
    return _fail("interrupted", 130) if code == 130 else int(code or 0)


@contextlib.contextmanager
def _plain_warnings() -> Iterator[None]:
    """Our own warnings are one line on stderr; all others stay as they are."""
    usual = warnings.showwarning

    def shown(message: Warning | str, category: type[Warning], *more: Any) -> None:
        if issubclass(category, GradwireWarning):
            print(f"gradwire: warning: {str(message).removeprefix('gradwire: ')}", file=sys.stderr, flush=True)
        else:
            usual(message, category, *more)

    warnings.showwarning = shown  # type: ignore[assignment]  # the rest of the arguments is passed on as it is
    try:
        yield
    finally:
        warnings.showwarning = usual


def _usage(problem: Any, arguments: Sequence[str]) -> str:
    path = problem.ctx.command_path if problem.ctx else "gradwire"
    message = problem.format_message().rstrip(".")
    came = _value(arguments, getattr(getattr(problem, "param", None), "opts", ()))
    told = f"{message}, got {came!r}" if came is not None and not message.startswith("Missing") else message
    return f"{told.replace('?', '')}; see: {path} --help"


def _value(arguments: Sequence[str], names: Sequence[str]) -> str | None:
    """What was typed behind the last option of one of these names."""
    found = None
    for here, following in zip(arguments, (*arguments[1:], None), strict=True):
        name, equals, value = here.partition("=")
        if name in names:
            found = value if equals else following
    return found


def _fail(message: str, code: int, problem: Exception | None = None) -> int:
    line = " ".join(message.split())
    print(line if line.startswith("gradwire") else f"gradwire: {line}", file=sys.stderr)
    if problem is not None and os.environ.get(TRACEBACK):
        traceback.print_exception(problem)
        print(getattr(problem, "details", ""), file=sys.stderr)  # what a rank has sent of its own
    return code
