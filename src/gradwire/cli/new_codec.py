"""`gradwire new-codec`: a package with a codec that works, to be changed into yours."""

from __future__ import annotations

import keyword
import re
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from gradwire.cli.output import AsJson, emit

TEMPLATE = Path(__file__).parent / "template"


def new_codec(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The codec's name, such as my_int8.", show_default=False)],
    directory: Annotated[
        Path, typer.Option("--dir", metavar="FOLDER", help="Where the package's folder is made.")
    ] = Path("."),
    as_json: AsJson = False,
) -> None:
    """Write a package with a codec of your own: a module, its tests, an entry point.

    The codec rounds to 8 bits and passes all checks at once; change it into yours, step by step. Nothing that exists is
    overwritten.

    \b
    Example:
      gradwire new-codec my_int8
      cd gradwire-my-int8 && gradwire check gradwire_my_int8:MyInt8
    """
    from gradwire.core.errors import ConfigError

    _check_name(name)
    module, cls = f"gradwire_{name}", "".join(part.capitalize() for part in name.split("_"))
    package = module.replace("_", "-")
    folder = directory / package
    if not directory.is_dir():
        raise ConfigError(
            f"new-codec: there is no folder {str(directory)!r}; make it first, or name another with --dir"
        )
    if folder.exists():
        raise ConfigError(
            f"new-codec: {str(folder)!r} is there already, and nothing is overwritten; choose another name"
        )
    words = {"name": name, "cls": cls, "module": module, "package": package}
    targets = {
        f"{module}.py": "codec.py.txt",
        f"tests/test_{name}.py": "test.py.txt",
        "pyproject.toml": "pyproject.toml.txt",
        "README.md": "README.md.txt",
    }
    for target, source in targets.items():
        write(folder / target, filled(source, words))
    next_steps = [f"cd {folder}", f"gradwire check {module}:{cls}", "python -m pytest", "python -m pip install -e ."]
    result = {"folder": str(folder), "files": sorted(targets), "next": next_steps}
    emit(result, as_json, lambda: _page(folder, list(targets), next_steps))


def filled(source: str, words: dict[str, str]) -> str:
    """A file of the template, with the codec's names in it.

    Args:
        source: the file's name.
        words: name, cls, module and package.
    """
    text = (TEMPLATE / source).read_text(encoding="utf-8")
    return re.sub(r"\$(name|cls|module|package)\b", lambda found: words[found[1]], text)


def write(target: Path, text: str) -> None:
    """A new file, and the folders above it."""
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text, encoding="utf-8")


def _check_name(name: str) -> None:
    from gradwire.core.codec import codecs
    from gradwire.core.errors import ConfigError

    if not re.fullmatch(r"[a-z][a-z0-9_]{0,38}[a-z0-9]", name) or "__" in name or keyword.iskeyword(name):
        raise ConfigError(
            f"new-codec: a codec's name has 2 to 40 small letters, digits and single underscores and begins with a "
            f"letter, as in my_int8; got {name!r}"
        )
    if name in codecs.names():
        raise ConfigError(f"new-codec: there is a codec {name!r} already; choose another name")


def _page(folder: Path, files: list[str], next_steps: list[str]) -> RenderableType:
    written = [Text(f"  {folder / name}") for name in files]
    steps = [Text(f"  {step}") for step in next_steps]
    return Group(Text("Written:", style="bold"), *written, Text(), Text("Next:", style="bold"), *steps)
