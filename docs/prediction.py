"""The pages about predictions, from records and the papers' claims: docs/prediction.md and docs/utility.md."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from pathlib import Path

import throughputs

from gradwire.core.records import Record, load
from gradwire.core.units import format_rate, transfer_seconds
from gradwire.laboratory.reproduce.catalogue import build
from gradwire.laboratory.reproduce.contradictions import UTILITY
from gradwire.laboratory.reproduce.evidence import Evidence
from gradwire.laboratory.reproduce.grid import METHODS, WORKLOADS
from gradwire.planner import quality, validate
from gradwire.planner.calibrate import modelled
from gradwire.planner.profile import Profile, names
from gradwire.planner.validate import Errors

PREDICTED = "prediction_xeon_2026-11-15.jsonl"
HELD_OUT = "prediction_xeon-held-out_2026-11-15.jsonl"
MEASURED = "validation_xeon_2026-11-15.jsonl"
AGAIN = "validation_xeon-again_2026-11-15.jsonl"
AFTER, OVERLAPPED = "after", "overlapped"
AIM = (0.018, 0.09)  # median and largest error
ERRORS = "| | settings | median error | largest | bias | spread of the measurement |\n|---|---|---|---|---|---|\n"


# -------------------------------------------------------------------- prediction.md


def prediction(root: Path) -> str:
    found = load(root / "results" / PREDICTED)
    about = found[0].outcome["calibrated_on"]
    errors = {e.what: e for e in validate.by(found, validate.family)}
    return (
        "# Predicted against measured\n\n"
        "`gradwire predict`, `advise` and `whatif` answer from a model: a timeline of DDP's buckets or a codec's "
        "units, what each of them exchanges (from the tracer, so there is no formula of any codec), what links, "
        "encoding and decoding cost (from a hardware profile), and who waits for whom. This page says how far off it "
        "is where we could measure. For GPUs it was held against published "
        f"throughputs, and {'fails' if throughputs.fails() else 'passes'}: [throughputs.md](throughputs.md).\n\n"
        f"The profile was fitted to one place, **{about['place']}** ({about['cpu']}, {about['cores']} cores, emulated "
        f"hosts), and **{len(found)} settings at other rates and other numbers of hosts were predicted blind**: "
        f"{_places(found)}; {_count(found, 'model')} models, {_count(found, 'configuration') - 2} codecs, both modes.\n"
        f"\n{ERRORS}{_rows(errors.values())}{_rows(validate.by(found, validate.configuration))}"
        f"\n### By place\n\n{ERRORS}{_rows(validate.by(found, _place))}"
        "\n### A model whose codecs were not calibrated\n\nThe same, but of each model only its times without "
        "exchange were known, and the codecs' costs from the two others.\n"
        f"\n{ERRORS}{_held_out(root)}"
        f"{_verdict(errors, _gathered(root))}{_repeated(root)}{_profiles()}"
        "\n### Made by\n\n"
        f"- `gradwire validate results/{MEASURED} --place 4@500mbit --record results/{PREDICTED}` "
        f"([predictions](../results/{PREDICTED}), [measurements](../results/{MEASURED}))\n"
        f"- the same with `--hold-out MODEL` ([predictions](../results/{HELD_OUT}))\n"
        f"- `{about['command']}`\n"
    )


def _rows(errors: object) -> str:
    return "".join(
        f"| {e.what} | {e.settings} | **{e.median:.1%}** | {e.maximum:.1%} | {e.bias:+.1%} | {e.spread:.1%} |\n"
        for e in errors  # type: ignore[attr-defined]
    )


def _place(record: Record) -> str:
    return f"{record.what['hosts']} hosts, {format_rate(record.what['bits_per_second'])}"


def _places(found: Sequence[Record]) -> str:
    return "; ".join(dict.fromkeys(_place(r) for r in found))


def _count(found: Sequence[Record], name: str) -> int:
    return len({r.what[name] for r in found})


def _held_out(root: Path) -> str:
    found = load(root / "results" / HELD_OUT)
    return _rows(validate.by(found, lambda r: f"{r.what['model']}, {validate.family(r)}"))


def _verdict(errors: dict[str, Errors], gathered: tuple[float, float]) -> str:
    plain, half, codecs = errors["fp32 DDP"], errors["fp16 DDP"], errors["codecs"]
    return (
        "\n### Against the aim\n\nThe published model was 1.8 % off in the median and 13.7 % at most (19.1 % for "
        f"signSGD); our aim was 1.8 % and 9 %. DDP: {_met(plain)} in FP32 ({plain.median:.1%}, {plain.maximum:.1%}), "
        f"{_met(half)} in FP16 ({half.median:.1%}, {half.maximum:.1%}). Codecs: {_met(codecs)} ({codecs.median:.1%}, "
        f"{codecs.maximum:.1%}). Why codecs are harder, as far as the records show it:\n\n"
        "1. Steps with a codec are encode and decode times of 2 to 20 ms on cores that all emulated hosts share. With "
        "2 hosts they take less, with 8 more than with the 4 of the calibration; hosts of their own would not. The "
        "signs in the table by place show it.\n"
        "2. The same configuration differs from run to run by more than the prediction is off (below).\n"
        f"3. With 2 hosts codecs go by all-gather, and gloo's all-gather between two hosts uses {gathered[0]:.2f} of "
        f"the link (blockint's steps of ncf-ml1m), between four {gathered[1]:.2f} (its largest single gradient); a "
        "calibration at four cannot know. (Since then large rows between two hosts go in pairs.)\n"
    )


def _gathered(root: Path) -> tuple[float, float]:
    """The share of the link that all-gathers use: of steps between two hosts, of a gradient between four."""
    found = load(root / "results" / MEASURED)
    two = [
        r
        for r in found
        if r.kind == "step"
        and (r.what["hosts"], r.what["configuration"], r.what["model"]) == (2, "blockint(bits=8)", "ncf-ml1m")
    ]
    four = [r for r in found if r.what.get("codec") == "blockint(bits=8)" and r.what["strategy"] == "all_gather"]
    return statistics.median(map(_used, two)), _used(max(four, key=lambda r: r.what["elements"]))


def _used(record: Record) -> float:
    sent, rate = record.outcome["sent_bytes"], record.what["bits_per_second"]
    return float(transfer_seconds(sent, rate) / record.outcome["parts_seconds"]["communicate"])


def _met(errors: Errors) -> str:
    if errors.median > AIM[0]:
        return "**missed**"
    return "met" if errors.maximum <= AIM[1] else "met in the median, missed at most"


def _repeated(root: Path) -> str:
    """The same settings measured in two runs."""
    first = {(_key(r)): r.quantiles.p50 for r in load(root / "results" / MEASURED) if r.kind == "step"}
    pairs = [(r, first[_key(r)]) for r in load(root / "results" / AGAIN) if _key(r) in first and modelled(r)]
    text = (
        f"\n### The same settings, measured twice\n\n[Another run](../results/{AGAIN}) of some of the settings, half "
        "an hour later, on a machine of the same kind. Differences of medians:\n\n"
        "| | settings | median difference | largest | signed |\n|---|---|---|---|---|\n"
    )
    for what in ("fp32 DDP", "fp16 DDP", validate.CODECS):
        differences = [r.quantiles.p50 / before - 1 for r, before in pairs if validate.family(r) == what]
        text += (
            f"| {what} | {len(differences)} | {statistics.median(map(abs, differences)):.1%} | "
            f"{max(map(abs, differences)):.1%} | {statistics.median(differences):+.1%} |\n"
        )
    return text


def _key(record: Record) -> str:
    return json.dumps(dict(record.what), sort_keys=True)


def _profiles() -> str:
    text = "\n### Hardware profiles\n\n| profile | what it is | models | codecs |\n|---|---|---|---|\n"
    for name in sorted(n for n in names() if n != "this-machine"):
        profile = Profile.load(name)
        text += f"| `{name}` | {profile.description} | {len(profile.models)} | {len(profile.codecs)} |\n"
    return text + (
        "\nEach entry of a profile says whether it was measured, published, inferred or assumed, and every answer "
        "repeats that. `gradwire calibrate` makes one of your machine.\n"
    )


# -------------------------------------------------------------------- utility.md


def utility(evidence: Evidence) -> str:
    return (
        "# The published study, checked\n\n"
        "*On the Utility of Gradient Compression in Distributed Training Systems* (Agarwal et al., MLSys 2022, "
        "arXiv:2103.00543) concludes that compression wins in 6 of more than 200 set-ups. Below: what it says, what "
        "its own formula says, what our model says, and what our records say where they can. The formula needs inputs "
        "that the paper does not print: the M-set is solved from eight measured claims, the S-set comes from first "
        "principles. "
        "`gradwire reproduce` lists all tables and figures; `gradwire reproduce ID` prints one.\n\n"
        f"## Claims\n\n{_claims(evidence)}\n"
        f"## Contradictions inside the study\n\n{_contradictions(evidence)}\n"
        f"## The grid of 200 set-ups\n\n{_bet(evidence)}\n{_exhibit('grid', evidence)}\n"
        f"## With codecs that kept their quality\n\n{_kept(evidence)}\n{_exhibit('safe', evidence)}\n"
        f"## Sensitivity\n\n{_exhibit('sensitivity', evidence)}\n"
        "## Made by\n\n`gradwire reproduce utility`, and `grid`, `safe`, `contradictions`, `sensitivity` likewise, "
        "where the records of [results](../results/README.md) are. All counts are time per step as a model gives it: "
        "the grid counts no loss of accuracy, and nothing in case (ii) was measured on such a cluster.\n"
    )


def bet(evidence: Evidence) -> list[tuple[int, str]]:
    """How many of 200 beat FP16 by more than 5 %, and how: as measured, at a V100's memory speed, for nothing."""
    wins = {str(row[0]): int(str(row[5])) for row in build("grid", evidence).rows}
    return [max((w, n) for n, w in wins.items() if n.startswith(f"({case})")) for case in ("ii", "iii", "iv")]


def _bet(evidence: Evidence) -> str:
    """How our bet stands: that with our strategies and encode times compression wins in most of them, against FP16."""
    (now, how), (slower, _), (bound, _) = bet(evidence)
    after = " or ".join(f"{wins} {name}" for name, wins in _by_case(evidence, "grid", 5, AFTER).items())
    return (
        "Our bet was that bandwidth-optimal aggregation and fast kernels win in most of them, against FP16, by more "
        "than 5 %. With the encode times that we have measured on an H200 it is "
        f"**{now} of 200** at best ({how}): {'most' if now > 100 else 'not most'}. That is if encoding overlaps with "
        f"the backward pass as our model has it; after the backward pass it is {after}. Too much overlap is also what "
        "explains most of the model's errors on [published throughputs](throughputs.md). Of the study's four methods "
        f"{_kept_methods()} is safe by our trainings ([below](#with-codecs-that-kept-their-quality)). Published "
        f"methods and encode times win none. If encoding ran at the speed of a V100's memory, it would be {slower}, by "
        f"assumption; if it cost nothing, {bound}: the other {200 - bound} are lost to bytes and latencies, or hidden "
        "behind the backward pass with FP16, too.\n"
    )


def _kept_methods() -> str:
    """Which of the published methods may be recommended for the models of the grid."""
    kinds = {quality.kind_of(model) for model, _ in WORKLOADS}
    kept = [m for m in METHODS if all(quality.standing(m, kind).kind == quality.SAFE for kind in kinds)]
    return ", ".join(kept) or "none"


def _by_case(evidence: Evidence, exhibit: str, column: int, when: str) -> dict[str, int]:
    """Wins of case (ii), flat and hierarchical, after the backward pass or overlapped."""
    cells = {str(row[0]).removeprefix("(ii) "): row[column] for row in build(exhibit, evidence).rows}
    return {way: int(str(cells[f"{way}, {when}"])) for way in ("flat", "hierarchical")}


def _range(evidence: Evidence, exhibit: str, column: int, when: str) -> str:
    """From the worse to the better way."""
    low, high = sorted(_by_case(evidence, exhibit, column, when).values())
    return f"{low} to {high}" if low < high else str(low)


def _kept(evidence: Evidence) -> str:
    """The same, where a loss of quality counts."""
    places = build("safe", evidence).rows[0][2]
    return (
        f"The {places} places of the grid once more, each with the fastest codec that `gradwire advise` would call "
        "safe for such a model. By more than 5 % it beats FP16 in "
        f"{_range(evidence, 'safe', 4, OVERLAPPED)} of them if it overlaps with the backward pass, and in "
        f"{_range(evidence, 'safe', 4, AFTER)} after it.\n"
    )


def for_readme(evidence: Evidence) -> str:
    """The range of all that, with what it takes for granted."""
    after, overlapped = (_range(evidence, "grid", 5, when) for when in (AFTER, OVERLAPPED))
    safe_after, safe_overlapped = (_range(evidence, "safe", 4, when) for when in (AFTER, OVERLAPPED))
    places = build("safe", evidence).rows[0][2]
    return (
        f". By our model, with encode times of an H200, its methods beat FP16 by more than 5 % in {after} of them "
        f"after the backward pass, and in {overlapped} if encoding overlaps with it as assumed; {_kept_methods()} of "
        f"these methods is safe by our trainings. The set-ups are {places} places with 4 methods each: the fastest "
        f"safe codec beats FP16 so in {safe_after} of the places after the backward pass, in {safe_overlapped} "
        "overlapped: "
    )


def _claims(evidence: Evidence) -> str:
    exhibit = build("utility", evidence)
    shown = ("id", "claim", "paper", "formula, M-set", "formula, S-set", "our model", "measured", "basis", "verdict")
    shown = (*shown, "by our model")
    return _table(exhibit.columns, exhibit.rows, shown) + "".join(f"\n- {n}" for n in exhibit.notes) + "\n"


def _contradictions(evidence: Evidence) -> str:
    """Those of this study; the others' are on the page of findings."""
    exhibit = build("contradictions", evidence)
    rows = [row for row in exhibit.rows if row[0] == UTILITY]
    return _table(exhibit.columns, rows, exhibit.columns[1:]) + "".join(f"\n- {n}" for n in exhibit.notes) + "\n"


def _exhibit(name: str, evidence: Evidence) -> str:
    exhibit = build(name, evidence)
    return _table(exhibit.columns, exhibit.rows, exhibit.columns) + "".join(f"\n- {n}" for n in exhibit.notes) + "\n"


def _table(columns: Sequence[str], rows: Sequence[Sequence[object]], shown: Sequence[str]) -> str:
    at = [columns.index(c) for c in shown]
    lines = [f"| {' | '.join(shown)} |", f"|{'---|' * len(shown)}"]
    lines += [f"| {' | '.join(_cell(row[i]) for i in at)} |" for row in rows]
    return "\n".join(lines) + "\n"


def _cell(value: object) -> str:
    if value is None:
        return "-"
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    return text.replace("|", "/")
