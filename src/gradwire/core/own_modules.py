"""Modules of users: how they are found; and those that hold codecs, named by `--import` or by GRADWIRE_IMPORT.

The environment variable is how processes that a command starts come to know them, too.
"""

from __future__ import annotations

import importlib
import os
import sys
from types import ModuleType

from gradwire.core.errors import ConfigError

VARIABLE = "GRADWIRE_IMPORT"


def load(name: str, who: str) -> ModuleType:
    """Import a module, which may lie in the working directory.

    Args:
        name: the module's name, as in an import statement.
        who: asks for it, for errors.
    """
    if not name or not all(part.isidentifier() for part in name.split(".")):
        hint = (
            "my_package.codecs" if not name.endswith(".py") else name.removesuffix(".py").replace("/", ".").strip(".")
        )
        raise ConfigError(f"{who}: {name!r} is no module's name; write it as in an import statement, such as {hint}")
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)  # a console script does not look there by itself
    try:
        return importlib.import_module(name)
    except ImportError as problem:
        gone = problem.name if isinstance(problem, ModuleNotFoundError) else None
        missing = gone is not None and f"{name}.".startswith(f"{gone}.")
        found = f"there is no module {name!r} in {here} or on the Python path" if missing else f"{name!r}: {problem}"
        raise ConfigError(f"{who}: {found}; check its spelling, or install its package") from problem


def announce(name: str) -> None:
    """Import a module of codecs here, and in all processes that this one starts.

    Args:
        name: the module's name.
    """
    load(name, "--import")
    os.environ[VARIABLE] = ",".join(dict.fromkeys([*announced(), name]))


def announced() -> list[str]:
    """The modules that the environment names."""
    return [name for name in os.environ.get(VARIABLE, "").split(",") if name]
