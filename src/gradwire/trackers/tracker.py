"""What a tracker is, how a spec opens one, and how statistics become the numbers it takes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from importlib import import_module
from types import TracebackType
from typing import Any, Protocol, Self

from gradwire.core.errors import ConfigError, MissingExtra, UnknownName, suggestion

# kind -> the class, imported when it is asked for, and what follows the colon
KINDS = {
    "tensorboard": ("gradwire.trackers.tensorboard", "TensorBoard", "a folder"),
    "wandb": ("gradwire.trackers.wandb", "WeightsAndBiases", "a project"),
    "mlflow": ("gradwire.trackers.mlflow", "MLflow", "an experiment"),
}
NOT_A_CURVE = ("steps", "workers")  # numbers in a handle's statistics that say nothing over the steps


class Tracker(ABC):
    """Takes numbers by step. Use it in a ``with`` block, or close it: what is not closed may not be written."""

    @abstractmethod
    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Take the values of some quantities.

        Args:
            step: after how many steps; it must not go back for one quantity.
            values: by the quantity's name.
        """

    @abstractmethod
    def config(self, values: Mapping[str, Any]) -> None:
        """Say what the run was started with; once, before the first `log`.

        Args:
            values: by name.
        """

    @abstractmethod
    def close(self, *, failed: bool = False) -> None:
        """Write what is left. Closing twice does nothing.

        Args:
            failed: mark the run, where the tracker has such a mark.
        """

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close(failed=kind is not None)


class NoTracker(Tracker):
    """Takes everything and keeps nothing: for the ranks that do not report."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        pass

    def config(self, values: Mapping[str, Any]) -> None:
        pass

    def close(self, *, failed: bool = False) -> None:
        pass


def open_tracker(spec: str) -> Tracker:
    """Open the tracker that a spec describes. Open it on one rank only, and ``"none"`` on the others.

    Args:
        spec: ``"tensorboard:FOLDER"``, ``"wandb:PROJECT"``, ``"mlflow:EXPERIMENT"``, or ``"none"``.

    Example:
        >>> import gradwire
        >>> with gradwire.open_tracker("none") as tracker:
        ...     tracker.config({"codec": "topk(ratio=0.01)"})
        ...     tracker.log(1, {"train_loss": 2.5})
    """
    kind, colon, where = spec.partition(":")
    if spec == "none":
        return NoTracker()
    if kind not in KINDS:
        raise UnknownName(f"no tracker named {kind!r}; {suggestion(kind, [*KINDS, 'none'])}")
    module, name, wanted = KINDS[kind]
    if not (colon and where.strip()):
        raise ConfigError(f"tracker {kind!r} needs {wanted}, got {spec!r}; write {kind}:{wanted.split()[-1].upper()}")
    tracker: Tracker = getattr(import_module(module), name)(where)
    return tracker


def load_package(module: str, extra: str) -> Any:
    """The optional package's module, imported now. `extra` is gradwire's name for the package."""
    try:
        return import_module(module)
    except ImportError as missing:
        raise MissingExtra(
            f"tracker {extra!r}: the package {extra} cannot be imported ({missing}); run: pip install {extra}"
        ) from missing


class HasStats(Protocol):
    """What `gradwire.attach` returns."""

    def stats(self) -> dict[str, Any]: ...


def handle_values(handle: HasStats) -> dict[str, float]:
    """The statistics of a handle as scalars; what is no number, or not known, is left out.

    Args:
        handle: what `gradwire.attach` returned.
    """
    stats = handle.stats()
    found = {name: value for name, value in _numbers(stats).items() if name not in NOT_A_CURVE}
    return {_curve(name): value for name, value in found.items()}


def _curve(name: str) -> str:
    """``residual_norm/total`` beside ``residual_norm/<parameter>``."""
    return "residual_norm/total" if name == "residual_norm" else name.replace("residual_norms/", "residual_norm/", 1)


def level_values(levels: Mapping[str, str], order: Sequence[str]) -> dict[str, float]:
    """Each parameter's level as a scalar: where its codec stands in `order`.

    Args:
        levels: the codec of each parameter, as in ``handle.end_epoch().levels``.
        order: a controller's ``levels``.
    """
    return {f"level/{parameter}": float(order.index(codec)) for parameter, codec in levels.items()}


def _numbers(values: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """All numbers in a mapping; those in a mapping inside it are named ``outer/inner``."""
    found: dict[str, float] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            found |= _numbers(value, f"{prefix}{key}/")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            found[f"{prefix}{key}"] = float(value)
    return found
