"""The option `--import`, which every command has: codecs outside of gradwire become known by it."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any, get_type_hints

import typer

OPTION = typer.Option(
    "--import",
    metavar="MODULE",
    help="Import a module that registers codecs of your own; may be repeated.",
    show_default=False,
)
NAME = "imported_modules"


def importing(command: Callable[..., Any]) -> Callable[..., Any]:
    """The same command with the option. The modules are imported before it runs, and in processes that it starts.

    Args:
        command: a function as typer takes it.
    """

    @functools.wraps(command)
    def run(*arguments: Any, **options: Any) -> Any:
        modules = options.pop(NAME, None)
        if modules:
            from gradwire.core.own_modules import announce

            for module in modules:
                announce(module)
        return command(*arguments, **options)

    hints = get_type_hints(command, include_extras=True)
    own = inspect.signature(command)
    given = [p.replace(annotation=hints[p.name]) for p in own.parameters.values()]
    kind = Annotated[list[str] | None, OPTION]
    added = inspect.Parameter(NAME, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)
    run.__signature__ = own.replace(parameters=[*given, added])  # type: ignore[attr-defined]
    run.__annotations__ = {**hints, NAME: kind}
    return run
