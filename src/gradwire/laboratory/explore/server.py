"""The page with sliders, by NiceGUI: everything comes from this machine, and only this machine can open it."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from gradwire.core.errors import ConfigError, MissingExtra
from gradwire.core.units import format_rate
from gradwire.laboratory.explore import answer as answers
from gradwire.laboratory.explore.answer import Answer, Question
from gradwire.laboratory.report import layout, page
from gradwire.laboratory.report.chart import Picture

HOST = "127.0.0.1"
TITLE = "gradwire explore"
WAIT = 0.15  # seconds that a slider rests before it is answered
COLOURS = {"worth it": "var(--q-positive)", "too close to call": "var(--q-warning)"}  # of the line beside a verdict
VERDICT = "text-lg font-bold border-l-4 pl-3"
SLIDERS: tuple[tuple[str, str, Sequence[float], Callable[[Any], str]], ...] = (  # field, label, values, how written
    ("bandwidth", "bandwidth of a node", answers.RATES, format_rate),
    ("gpus", "GPUs", answers.GPUS, str),
    ("batch", "batch of one GPU", answers.BATCHES, str),
    ("encode_time", "encode time, times the profile's", answers.ENCODE_TIMES, lambda value: f"{value:g}×"),
    ("max_loss", "accuracy a codec may lose", answers.LOSSES, lambda value: f"{value:g} points"),
)


def serve(start: Question, *, port: int, show: bool, told: Callable[[str], None] = print) -> None:
    """Run the page until Ctrl-C.

    Args:
        start: where the sliders stand first.
        port: of this machine; 0 takes a free one.
        show: open a browser.
        told: is given the address.
    """
    try:
        from nicegui import ui
    except ImportError as missing:
        raise MissingExtra(
            f"explore: the page needs {missing.name}, which is not installed; run: pip install nicegui, "
            "or ask on the command line: gradwire advise, gradwire whatif"
        ) from missing
    known = answers.models(start.hardware)
    if start.model not in known:
        raise ConfigError(
            f"explore: profile {start.hardware} has no times of {start.model!r}, only of {', '.join(known)}; "
            f"choose one of these, or measure yours: gradwire calibrate --model {start.model}"
        )
    port = _free(port)
    told(f"http://{HOST}:{port}")
    ui.run(
        partial(_page, start, known),
        host=HOST,
        port=port,
        title=TITLE,
        show=show,
        reload=False,
        dark=None,  # as the reader's system has it
        show_welcome_message=False,
        favicon="🗜",
        uvicorn_logging_level="warning",
    )


def _free(port: int) -> int:
    """The port, if nobody has it."""
    with socket.socket() as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind((HOST, port))
        except OSError as problem:
            raise ConfigError(
                f"explore: port {port} cannot be used ({problem.strerror}); give another with --port, or --port 0 for "
                "any that is free"
            ) from problem
        return int(trial.getsockname()[1])


def _page(start: Question, known: Sequence[str]) -> None:
    from nicegui import ui

    ui.add_head_html(page.styles(".answer"))
    ui.add_body_html(f'<script type="module">{page.asset("page.js")}</script>')
    ui.query(".nicegui-content").classes("p-4 w-full max-w-6xl mx-auto")
    ui.label("Does compression pay on my cluster?").classes("text-2xl font-bold")
    with ui.row().classes("w-full items-start gap-x-8 gap-y-4"):
        controls = ui.column().classes("w-full md:w-72 gap-1 shrink-0")
        shown = ui.column().classes("answer grow w-full md:w-0 min-w-0 gap-2")
    _Explorer(start, known).build(controls, shown)


class _Explorer:
    """One reader's sliders, and what they show. A later question overtakes those that are still being answered."""

    def __init__(self, start: Question, known: Sequence[str]) -> None:
        self.question = start
        self.known = known
        self.asked = 0

    def build(self, controls: Any, shown: Any) -> None:
        """Put everything on the page, and answer the first question."""
        from nicegui import ui

        with controls:
            ui.select(
                list(self.known), label="model", value=self.question.model, on_change=self._chosen("model")
            ).classes("w-full")
            for slider in SLIDERS:
                self._slider(*slider)
            ui.label("GPUs in a node, which share its network card").classes("text-sm mt-2")
            per_node = self.question.gpus_per_node
            ui.toggle(list(answers.PER_NODE), value=per_node, on_change=self._chosen("gpus_per_node"))
        with shown:
            self.verdict = ui.label().classes(VERDICT)
            self.line = ui.code("", language="python").classes("w-full text-xs")
            self.steps = ui.html("", sanitize=False).classes("w-full")
            self.map = ui.html("", sanitize=False).classes("w-full")
            with ui.expansion("How sure is that?").classes("w-full"):
                self.notes = ui.column()
            self.command = ui.label().classes("text-xs break-all opacity-70")
        ui.timer(0.05, self.answer, once=True)

    def _slider(self, field: str, label: str, values: Sequence[float], written: Callable[[Any], str]) -> None:
        from nicegui import ui

        now = getattr(self.question, field)
        nearest = min(range(len(values)), key=lambda i: abs(values[i] - now))
        told = ui.label().classes("text-sm mt-2")
        slider = ui.slider(min=0, max=len(values) - 1, value=nearest).props(f'aria-label="{label}"')
        told.bind_text_from(slider, "value", lambda at: f"{label}: {written(values[int(at)])}")
        slider.on(
            "update:model-value",
            lambda event: self._set(field, values[int(event.args)]),
            throttle=WAIT,
            leading_events=False,
        )

    def _chosen(self, field: str) -> Callable[[Any], Any]:
        return lambda event: self._set(field, event.value)

    async def _set(self, field: str, value: Any) -> None:
        self.question = replace(self.question, **{field: value})
        await self.answer()

    async def answer(self) -> None:
        """Show the answer, then the map, which takes longer; unless the sliders have moved on."""
        from nicegui import run, ui

        self.asked += 1
        mine, fit = self.asked, answers.fitting(self.question.gpus, self.question.gpus_per_node)
        question = replace(self.question, gpus=fit)
        found = await run.io_bound(answers.answer, question)
        if found is None or mine != self.asked:  # None: the server is being ended
            return
        self._tell(question, found)
        ui.run_javascript("gradwire.show()")
        drawn = await run.io_bound(answers.choices, question)
        if drawn is not None and mine == self.asked:
            self.map.set_content(_drawn(drawn))
            ui.run_javascript("gradwire.show()")

    def _tell(self, question: Question, found: Answer) -> None:
        from nicegui import ui

        self.verdict.set_text(found.sentence)
        self.verdict.classes(replace=VERDICT).style(f"border-color: {COLOURS.get(found.kind, 'var(--muted)')}")
        self.line.set_content(found.line or "")
        self.line.set_visibility(found.line is not None)
        self.steps.set_content(_drawn(found.steps))
        self.notes.clear()
        with self.notes:
            for note in found.notes:
                ui.label(note).classes("text-sm")
        self.command.set_text(f"The same on a terminal: {question.command}" if question.command else "")


def _drawn(picture: Picture | None) -> str:
    return "" if picture is None else page.figure(picture, layout.hues([picture]))
