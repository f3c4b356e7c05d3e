"""Writes what is seen of a training to a file of records, as `gradwire report` and `gradwire validate` read it."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gradwire.core import environment
from gradwire.core.errors import ConfigError
from gradwire.core.records import Quantiles, Record, append
from gradwire.core.training_records import KIND, UNIT
from gradwire.core.units import parse_rate
from gradwire.integrations.window import Window

SCRIPT = "a script of the user's"


class Recorder:
    """Appends one record for each window.

    Args:
        path: of the file; made if it is not there.
        what: codec, mode and whatever else was chosen, see `described`.
        backend: what carries the bytes.
    """

    def __init__(self, path: str | Path, what: Mapping[str, Any], backend: str) -> None:
        self._path, self._what = Path(path), dict(what)
        if self._path.suffix != ".jsonl":
            raise ConfigError(f"watch: records are lines of JSON, so `record` must end in .jsonl, got {str(path)!r}")
        if not self._path.parent.is_dir():
            raise ConfigError(f"watch: there is no folder {str(self._path.parent)!r} for the record; make it first")
        self._time, (self._commit, self._dirty) = environment.now(), environment.commit()
        self._environment = environment.fingerprint(backend)

    def __call__(self, window: Window) -> None:
        """Write it."""
        record = Record(
            kind=KIND,
            what=self._what,
            command=Path(sys.argv[0]).name or SCRIPT,
            time=self._time,
            commit=self._commit,
            dirty=self._dirty,
            environment=self._environment,
            unit=UNIT,
            quantiles=Quantiles.of(window.seconds),
            samples=window.seconds,
            outcome={
                "step": window.step,
                "codec": window.codec,
                "sent_bytes": window.sent_bytes,
                "plain_bytes": window.plain_bytes,
                "hidden_seconds": window.hidden,
                "exposed_seconds": window.exposed,
                "parts_seconds": window.parts,
                "residual_norm": _finite(window.residual_norm),
                "nmse": _finite(window.nmse),
                "skipped_steps": window.skipped_steps,
            },
        )
        append(self._path, [record])


def _finite(value: float | None) -> float | None:
    """JSON has no numbers for what a training that diverges may have."""
    return value if value is not None and math.isfinite(value) else None


def described(workers: int, model: str, about: Mapping[str, Any]) -> dict[str, Any]:
    """Model, batch, hosts and network of a run, as records name them; what nobody has told is None.

    Args:
        workers: ranks in all.
        model: what to call the model where `about` does not say.
        about: what the user has told; ``network`` is the rate of a host's link.
    """
    told = {**about}
    network, hosts = told.pop("network", None), told.pop("hosts", None)
    local = int(os.environ.get("LOCAL_WORLD_SIZE", 0))  # by torchrun
    if hosts is None:
        hosts = workers // local if local and workers % local == 0 else None
    elif not isinstance(hosts, int) or hosts < 1 or workers % hosts:
        raise ConfigError(f"watch: `hosts` must be a number of hosts that {workers} ranks fill evenly, got {hosts!r}")
    return {
        "model": model,
        "batch": None,
        **told,
        "hosts": hosts,
        "ranks_per_host": None if hosts is None else workers // hosts,
        "bits_per_second": None if network is None else parse_rate(network),
    }
