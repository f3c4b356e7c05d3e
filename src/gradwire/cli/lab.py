"""`gradwire lab`: an emulated network to run any command on."""

from __future__ import annotations

import contextlib
import json
import signal
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from gradwire.cli.output import AsJson, emit

if TYPE_CHECKING:
    from gradwire.laboratory.hosts import Network, Verified


def lab(
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="-- CMD", help="What every rank runs, as with torchrun.", show_default=False),
    ] = None,
    hosts: Annotated[int, typer.Option("--hosts", metavar="N", help="Number of hosts.")] = 4,
    rate: Annotated[
        str, typer.Option("--rate", metavar="RATE", help="Of every host's link, both ways, as in 100mbit.")
    ] = "1gbit",
    gpus_per_host: Annotated[int, typer.Option("--gpus-per-host", metavar="N", help="Ranks on each host.")] = 1,
    link: Annotated[
        list[str] | None,
        typer.Option(
            "--link",
            metavar="NAME=RATE",
            help="3=100mbit: host 3's own link; 0-1=10gbit: a direct cable between hosts 0 and 1; may be repeated.",
            show_default=False,
        ),
    ] = None,
    timeout: Annotated[
        float | None,
        typer.Option("--timeout", metavar="S", help="Seconds after which all ranks are ended.", show_default=False),
    ] = None,
    fault: Annotated[
        list[str] | None,
        typer.Option(
            "--fault",
            metavar="FAULT",
            help="cut:HOST@S, mend:HOST@S, slow:HOST@S (to a tenth) or kill:RANK@S: what happens S seconds after the "
            "start; may be repeated.",
            show_default=False,
        ),
    ] = None,
    no_verify: Annotated[bool, typer.Option("--no-verify", help="Do not measure the links first.")] = False,
    clean: Annotated[bool, typer.Option("--clean", help="End all labs of this user that still run.")] = False,
    as_json: AsJson = False,
) -> int:
    """Run a command on an emulated network: one network namespace a host, links shaped by the kernel.

    Rates and latency are measured before the command starts. Each rank finds RANK, WORLD_SIZE, MASTER_ADDR and so on
    in its environment; what it prints is prefixed by its rank. The exit code is that of the first rank that failed,
    or 124 when the time was up. Without a command the measured network is printed. Everything disappears with this
    process, however it ends.

    \b
    Examples:
      gradwire lab --hosts 4 --rate 1gbit -- python examples/train_ddp.py --steps 100
      gradwire lab --hosts 4 --rate 100mbit --link 3=10mbit
      gradwire lab --hosts 2 --fault cut:1@5 --fault mend:1@8 -- python train.py
      gradwire lab --clean
    """
    from gradwire.core.errors import ConfigError
    from gradwire.laboratory.hosts import Fault, Network, run
    from gradwire.laboratory.hosts.commands import check_request
    from gradwire.laboratory.hosts.namespace import become_able

    if clean:
        if command:
            raise ConfigError("lab: `--clean` ends labs and runs no command; give one or the other")
        _clean(as_json)
        return 0
    network = Network(hosts, rate, _links(link or ()))
    faults = [Fault.parse(text) for text in fault or ()]
    if command:
        check_request(network, command, gpus_per_host, timeout, faults)
    elif faults or no_verify:
        option = "--fault" if faults else "--no-verify"
        raise ConfigError(f"lab: `{option}` needs a command to run; without one the network is measured and printed")
    become_able()
    with _told_to_end(), network:
        if not command:
            verified = network.verify()
            emit(network.describe() | {"measured": verified.describe()}, as_json, lambda: table(verified))
            return 0
        if not no_verify:
            print(line(network, network.verify(), as_json), file=sys.stderr, flush=True)
        return run(network, command, per_host=gpus_per_host, timeout=timeout, faults=faults)


def _links(texts: Sequence[str]) -> dict[str, str]:
    from gradwire.core.errors import ConfigError

    links = {}
    for text in texts:
        name, equals, rate = text.partition("=")
        if not equals:
            raise ConfigError(f"lab: a link is written NAME=RATE, as in 3=100mbit or 0-1=10gbit; got {text!r}")
        links[name] = rate
    return links


@contextlib.contextmanager
def _told_to_end() -> Iterator[None]:
    """SIGTERM and SIGHUP end the ranks in good order, as Ctrl-C does."""

    def leave(number: int, _: object) -> None:
        print(f"gradwire lab: ended by {signal.Signals(number).name}", file=sys.stderr, flush=True)
        raise SystemExit(128 + number)

    before = {n: signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGHUP)}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:  # as under nohup
            signal.signal(number, leave)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _clean(as_json: bool) -> None:
    from gradwire.laboratory.hosts.namespace import end, owners

    found = owners()
    end(process for processes in found.values() for process in processes)
    ended = [{"owner": owner, "processes": sorted(processes)} for owner, processes in sorted(found.items())]
    lines = [f"ended the lab of process {owner}: {len(processes)} processes" for owner, processes in found.items()]
    emit({"ended": ended}, as_json, lambda: Text("\n".join(lines) or "no lab was left"))


# -------------------------------------------------------------------- what was measured, for people


def line(network: Network, verified: Verified, as_json: bool) -> str:
    """All of it in one line."""
    from gradwire.core.units import format_rate

    if as_json:
        return json.dumps(network.describe() | {"measured": verified.describe()})
    slow, fast = (format_rate(pick(verified.bits_per_second)) for pick in (min, max))
    measured = slow if slow == fast else f"{slow} to {fast}"
    return (
        f"gradwire lab: {len(network.rates)} hosts at {format_rate(network.rate)}; measured {measured} of payload, "
        f"{format_rate(min(verified.together))} or more with all at once, latency "
        f"{max(verified.latency_seconds) * 1e6:.0f} us"
    )


def table(verified: Verified) -> RenderableType:
    """One line a flow; what all reach at once goes below."""
    from gradwire.core.units import format_rate

    at_once = ", ".join(format_rate(rate) for rate in verified.together)
    note = f"payload, headers left out; from each host to the next, all at once: {at_once}"
    shown = Table(box=SIMPLE_HEAD, caption=note, caption_justify="left")
    for heading in ("from\nhost", "to\nhost", "asked", "measured", "latency"):
        shown.add_column(heading, justify="right")
    for (source, to), asked, reached, latency in zip(
        verified.flows, verified.asked, verified.bits_per_second, verified.latency_seconds, strict=True
    ):
        cells: tuple[Any, ...] = (source, to, format_rate(asked), format_rate(reached), f"{latency * 1e6:.0f} us")
        shown.add_row(*(Text(str(cell)) for cell in cells))
    return shown
