"""GRACE's claims: tables I and II, figures 1 and 6 to 10, and the findings of section V."""

from __future__ import annotations

from collections.abc import Callable

from gradwire.core.baselines import WIN
from gradwire.laboratory.reproduce import grace
from gradwire.laboratory.reproduce.claim import Claim, Judged, left_open, never
from gradwire.laboratory.reproduce.claims import grace_feedback as feedback
from gradwire.laboratory.reproduce.claims import grace_quality as quality
from gradwire.laboratory.reproduce.claims import grace_speed as speed
from gradwire.laboratory.reproduce.evidence import STRONG, Evidence
from gradwire.planner.tta import ALLOWED


def _claim(id: str, where: str, says: str, rule: str, check: Callable[[Evidence], Judged]) -> Claim:
    return Claim(id=f"G-{id}", says=says, where=where, rule=rule, check=check)


def _baseline(row: grace.Benchmark) -> Claim:
    name = row.name.partition(" on ")[0].lower().replace("-", "")
    return _claim(
        f"baseline-{name}", "table II", f"{row.name} ends at {row.quality:g} without compression.",
        f"our best without compression is that, give or take {ALLOWED}" if row.task else "-",
        quality.baseline(row),
    )  # fmt: skip


def _panels(evidence: Evidence) -> Judged:
    """Which parts of figures 6 and 7 have trainings of ours."""
    there = {t.name for t in quality.benchmarks(evidence)}
    missing = [b.name for b in grace.TABLE_II if b.task not in there]
    return left_open(f"{quality.FEW} codecs each on {', '.join(missing)}" if missing else "bars, which no text has")


CLAIMS = (
    *map(_baseline, grace.TABLE_II),
    _claim(
        "comparable", "V-B, figure 6", "Most trainings with compression end near the quality of the baseline.",
        "more than half of GRACE's methods, on its own benchmarks, are within 0.5 points of FP16", quality.comparable,
    ),
    _claim(
        "above", "V-B, figure 6", "Some end slightly above it.",
        f"one of its methods above FP16 by over {quality.CHOSEN} times the noise of seeds, {quality.SEEDS} seeds each",
        quality.above,
    ),
    _claim(
        "no-winner", "V-B and V-F", "No method beats all others in all scenarios.",
        f"over tasks with at least {quality.FEW} codecs, each codec is somewhere worse than the best one, by more than "
        f"{quality.CHOSEN} times the noise of seeds",
        quality.no_winner,
    ),
    _claim(
        "not-everywhere", "V-B", "No method does well on all benchmarks.",
        f"none of its methods is as good as FP16, give or take {ALLOWED}, in every task", quality.not_everywhere,
    ),
    _claim(
        "no-correlation", "V-B, figure 6", "Throughput and quality are not strongly correlated.",
        f"Spearman's correlation of best accuracy and modelled throughput on ResNet-9 is below {STRONG:g} with its "
        "interval",
        speed.correlated,
    ),
    _claim(
        "bound", "V-B, figure 6", "Models that compute much lose by compression, models that communicate much gain.",
        "modelled share of methods that beat FP32 is larger for VGG19 than for ResNet-50, where several lose",
        speed.bound,
    ),
    _claim(
        "ncf-loss", "V-B, figure 6",
        "Recommendation has a trade-off: up to 10 % of quality for 1.5 to 4.5 times the speed.",
        f"the largest loss of its methods on NCF is that to a factor of {quality.FACTOR:g}; speed is not checked",
        quality.trade_off,
    ),
    _claim(
        "ncf-degree", "V-B, figure 6", "There, heavier compression by the same codec means lower quality.",
        "each codec with several degrees is better at its lightest than at its heaviest, by more than seeds",
        quality.heavier_is_worse,
    ),
    _claim(
        "cifar-degree", "V-B", "On CIFAR-10 QSGD and Top-k have about the same quality at all degrees.",
        f"their degrees lie within {quality.BALLPARK:g} point", quality.ballpark,
    ),
    _claim(
        "panels", "figures 6 and 7", "Quality by throughput and by volume on all its benchmarks.",
        "-", _panels,
    ),
    _claim(
        "ef-sparse", "V-B and V-F", "Error feedback improves sparsification.",
        "better with it than without, by more than seeds differ, for more than half of sparse codecs, outside NCF",
        feedback.helps(feedback.SPARSE, "a sparse codec", True),
    ),
    _claim(
        "ef-table", "table I, V-B", "Error feedback improves the methods that table I marks.",
        "better with it than without, by more than seeds differ, for more than half of them, outside NCF",
        feedback.helps(grace.WITH_EF, "one of the methods that table I marks", True, listed=True),
    ),
    _claim(
        "ef-harms", "V-B", "Error feedback harms SignSGD, SIGNUM, QSGD and TernGrad.", "-",
        never(
            "any of these with plain error feedback, under which they may diverge: ours refuses three, and scales QSGD"
        ),
    ),
    _claim(
        "ef-ncf", "V-B, figure 6", "On recommendation alone, error feedback makes Top-k, 8-bit and Natural worse.",
        "worse on NCF for all that we have, and worse on no other task, by more than seeds", feedback.only_ncf,
    ),
    _claim(
        "volume", "V-C and V-F, figure 7", "More data is not always higher quality, but very little tends to be lower.",
        f"codecs below {quality.HEAVY:g} bit an element are worse, by the intervals of the medians, and some codec is "
        "clearly worse than one that sends less",
        quality.volume,
    ),
    _claim(
        "overhead", "V-D and V-F, figure 8", "Encoding and decoding cost time that cannot be neglected.",
        f"more than half of its methods take over {speed.COSTLY:.0%} of a ResNet-50 step, modelled", speed.overhead,
    ),
    _claim(
        "rarely-pays", "V-F", "From 10 Gbit/s on, not compressing is mostly faster.",
        f"less than half of models and methods are {WIN - 1:.0%} faster than FP32, modelled", speed.rarely_pays,
    ),
    _claim(
        "slow-links", "V-E, figure 10", "At 1 Gbit/s many compressors are faster than the baseline.",
        "more than half of models and methods, and more than at 10 Gbit/s, modelled", speed.slow_links_pay,
    ),
    _claim(
        "25gbit", "V-A", "25 Gbit/s in place of 10 brings 1.3 % on average.",
        f"at most {speed.MILD:.0%} on average over methods for each model, modelled", speed.faster_links,
    ),
    _claim(
        "seconds", "figure 1", "VGG16 on CIFAR-10 at 25 Gbit/s: Random-k is there after 450 s, no compression after "
        "850 and 8-bit after 1200.",
        "-", never("VGG16 on CIFAR-10 with Random-k and 8-bit, on a cluster"),
    ),
    _claim(
        "transport", "V-E, figure 9", "RDMA is faster than TCP for all compressors, and toolkits matter little.",
        "-", never("neither RDMA nor a second toolkit is here"),
    ),
)  # fmt: skip
