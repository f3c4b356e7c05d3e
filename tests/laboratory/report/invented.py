"""Records that nobody measured, for tests of what is made of them; and a reader of pages."""

from __future__ import annotations

import json
from html.parser import HTMLParser

from gradwire.core.records import Quantiles, Record

NASTY = "</script><img src=x onerror=alert(1)> \"quoted\" & 'so' $x$ **b** `c`"
CALIBRATED = {"hosts": 2, "rate": "1 Gbit/s", "share": 0.9448972705069223}
ENVIRONMENT = {"cpu": "a processor", "cores": 2, "gpu": None, "os": "Linux", "python": "3.11", "torch": "2.13"}


def record(kind, what, seconds, outcome, *, time="2026-01-02T03:04:05+00:00", cpu="a processor", **changes):
    samples = (seconds * 0.9, seconds, seconds * 1.1)
    values = {
        "kind": kind,
        "what": what,
        "command": f"gradwire bench {kind}",
        "time": time,
        "commit": "0123456789abcdef",
        "dirty": False,
        "environment": {**ENVIRONMENT, "cpu": cpu, "backend": "gloo over shaped links"},
        "unit": "seconds",
        "quantiles": Quantiles.of(samples),
        "samples": samples,
        "outcome": outcome,
    }
    return Record(**{**values, **changes})


def step(configuration, seconds, *, model="net", batch=4, hosts=4, rate=1e9, mode=None, strategy="auto", **where):
    """`mode` makes it a codec; without, it is a baseline."""
    what = {"hosts": hosts, "ranks_per_host": 1, "bits_per_second": rate, "configuration": configuration}
    what |= {"model": model, "batch": batch, "steps": 60, "seconds": None}
    what |= {"mode": mode, "strategy": strategy} if mode else {}
    coded = 0.001 if mode else None
    parts = {"forward": 0.001, "backward": 0.002, "wait": max(0.0, seconds - 0.004), "optimizer": 0.0005}
    parts |= {"encode": coded, "communicate": coded, "decode": coded}
    outcome = {"parts_seconds": parts, "sent_bytes": 1000.0, "interface_bytes": 1100.0, "dropped": 3}
    return record("step", what, seconds, outcome, **where)


def run(times, **where):
    """One run: baselines at 100 and 60 ms, and codecs with so many seconds."""
    baselines = [("no exchange", 0.004), ("fp32 DDP", 0.1), ("fp16 DDP", 0.06), ("torch powerSGD", 0.03)]
    ours = [step(codec, seconds, **{"mode": "overlap", **where}) for codec, seconds in times.items()]
    where = {k: v for k, v in where.items() if k not in ("mode", "strategy")}
    return [*(step(label, seconds, **where) for label, seconds in baselines), *ours]


def demo(configuration, seconds, *, rate=2e8, **where):
    what = {"configuration": configuration, "task": "shapes", "workers": 4, "bits_per_second": rate, "batch": 64}
    outcome = {"sent_bytes": 1e6, "loss": 0.35, "accuracy": 0.88, "parts_seconds": None}
    return record("demo", what, seconds, outcome, **where)


def encode(codec, seconds, *, elements=1 << 20, **where):
    what = {"codec": codec, "elements": elements, "workers": 4, "strategy": "all_gather", "memory": "default"}
    what |= {"threads": 1, "device": "cpu"}
    outcome = {"payload_bytes": elements // 8, "seconds": {"encode": seconds / 2, "reduce": 0.0, "decode": seconds / 2}}
    outcome |= {"reference_total_seconds": 3 * seconds, "copy_seconds": 0.002}
    return record("encode", what, seconds, outcome, **where)


def collective(codec, seconds, *, hosts=4, strategy="all_gather", **where):
    what = {"hosts": hosts, "ranks_per_host": 1, "bits_per_second": 1e9, "codec": codec, "strategy": strategy}
    outcome = {"interface_bytes": 1e6, "peak_bytes": 2e6, "parts_seconds": {"communicate": seconds}}
    return record("collective", {**what, "elements": 1 << 20}, seconds, outcome, **where)


def prediction(configuration, predicted, measured, **where):
    made = step(configuration, predicted, **where)
    outcome = {"measured_seconds": measured, "error": predicted / measured - 1, "profile": "this-machine"}
    return record("prediction", made.what, predicted, {**outcome, "calibrated_on": CALIBRATED})


def accuracy(codec, value, **where):
    what = {"codec": codec, "task": "shapes", "seed": 1}
    return record("accuracy", what, value, {"epochs": 3, "curve": [1, 2]}, unit="share of images", **where)


def training(step, seconds, *, model="net", codec="topk", exposed=0.004, rate=1e10, **where):
    """One line of a user's own training."""
    what = {"model": model, "configuration": codec, "workers": 4, "batch": 8, "hosts": 4, "ranks_per_host": 1}
    what |= {"bits_per_second": rate, "mode": "overlap", "strategy": "auto"}
    outcome = {"step": step, "sent_bytes": 1e6, "plain_bytes": 4e7, "parts_seconds": None}
    outcome |= {"hidden_seconds": exposed, "exposed_seconds": exposed}
    return record("training", what, seconds, outcome, **where)


def everything():
    """Some of each kind."""
    return [
        *run({"signsgd": 0.02, "topk(ratio=0.01)": 0.058}),
        *run({"signsgd": 0.07, "topk(ratio=0.01)": 0.08}, rate=2e9, time="2026-01-02T03:05:00+00:00"),
        *run({"signsgd": 0.01, NASTY: 0.05}, hosts=8, model=NASTY, time="2026-01-02T03:06:00+00:00"),
        *(demo(label, s) for label, s in (("fp32 DDP", 0.3), ("fp16", 0.2), ("efsignsgd", 0.1))),
        *(encode(codec, s) for codec, s in (("signsgd", 0.01), ("topk", 0.02))),
        *(collective("signsgd", 0.1 * hosts, hosts=hosts) for hosts in (2, 4)),
        prediction("fp32 DDP", 0.11, 0.1),
        *(prediction("signsgd", s, 0.02, mode="overlap") for s in (0.018, 0.021, 0.03)),
        accuracy("signsgd", 0.9),
        accuracy("topk", 0.8),
    ]


class Page(HTMLParser):
    """What is in a page; fails on tags that do not fit together."""

    VOID = ("meta", "br", "link", "img", "input", "hr", "col")

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.scripts, self.text, self.headings = [], [], [], "", []
        self.feed(text)
        self.close()
        assert self.open == [], f"never closed: {self.open}"

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in self.VOID:
            self.open.append(tag)
        if tag == "script":
            self.scripts.append((dict(attributes).get("type"), ""))
        if tag == "h2":
            self.headings.append("")

    def handle_endtag(self, tag):
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag, f"</{tag}> closes something else"

    def handle_data(self, data):
        if self.open and self.open[-1] == "script":
            self.scripts[-1] = (self.scripts[-1][0], self.scripts[-1][1] + data)
        elif "style" not in self.open:
            self.text += data
        if self.open and self.open[-1] == "h2":
            self.headings[-1] += data

    @property
    def pictures(self):
        """The JSON of each figure."""
        return [json.loads(text) for text in self.attributes("data-view")]

    def attributes(self, name):
        return [values[name] for _, values in self.tags if name in values]
