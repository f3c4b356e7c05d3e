"""Does the suite catch bugs? Plants typical ones, most of them found in public implementations, one at a time.

    make mutants                         # all of them
    python tests/mutants.py topk srg     # those whose name contains a word

Each mutant is one replacement in a copy of the sources; the tests that concern codecs run against that copy in a
process of its own and must fail. A mutant that survives is printed, and the exit status is 1.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
TESTS = [
    "codecs/test_examples.py",
    "codecs/test_quantization.py",
    "codecs/test_blockint_thc.py",
    "codecs/test_sparsification.py",
    "codecs/test_consensus.py",
    "codecs/test_standing_out.py",
    "codecs/test_hybrid.py",
    "codecs/test_lowrank.py",
    "codecs/test_gradiveq.py",
    "memory",
    "collectives",
    "kernels",
    "test_engine.py",
    "test_tracing.py",
    "adaptive",
    "core/test_state.py",
    "core/test_exchange.py",
    "planner/test_cost.py",
    "planner/test_buckets.py",
    "planner/test_timeline.py",
    "planner/test_model.py",
    "planner/test_calibrate.py",
    "planner/test_tta.py",
]
LAST = "codecs/test_conformance.py"  # long, so it runs only if nothing before it failed


@dataclass(frozen=True)
class Mutant:
    """Replace `old`, which must occur once in `file`, by `new`.

    `only` limits the conformance suite to a codec; `tests`, with spaces between them, are run instead of all others.
    """

    name: str
    file: str
    old: str
    new: str
    only: str = ""
    tests: str = ""


Q, S = "codecs/quantization/", "codecs/sparsification/"
MUTANTS = [
    Mutant("qsgd: no clamp at the top level", "kernels/grid/reference.py", ".clamp_(-low, high)", ".clamp_(-low, high + 1)", "qsgd"),
    Mutant("qsgd: all ranks round alike", Q + "_grid.py", 'return rng.private("round")', 'return rng.shared("round")', "qsgd"),
    Mutant("qsgd: rounds to nearest", Q + "_grid.py", 'return rng.private("round")', "return None", "qsgd"),
    Mutant("qsgd: global generator", Q + "_grid.py", 'return rng.private("round")', 'return Random(int(torch.randint(2**31, ()))).private("round")', "qsgd"),
    Mutant("qsgd: decodes with one level too many", "kernels/grid/reference.py", "return decode(codes, rows.divided(scales, rule.high),", "return decode(codes, rows.divided(scales, rule.high + 1),", "qsgd"),
    Mutant("qsgd: code too narrow", "kernels/grid/reference.py", "max(1, (low + high).bit_length())", "max(1, (low + high).bit_length() - 1)", "qsgd"),
    Mutant("qsgd: NaN becomes a plausible value", Q + "_grid.py", "        scales = self.scales(y, rule)\n        return Payload", "        scales = self.scales(y, rule).nan_to_num(1)\n        return Payload", "qsgd"),
    Mutant("topk: largest instead of largest magnitude", S + "_entries.py", "top(x, self.count(x.shape[1], rng))", "x.topk(self.count(x.shape[1], rng), dim=1).indices.sort(dim=1).values", "topk"),
    Mutant("topk: sum instead of mean", "kernels/scatter/cpu.py", ".div_(values.shape[0] // groups)", "", "topk"),
    Mutant("topk: ratio ignored", S + "_sparse_payload.py", "math.ceil(ratio * numel)", "math.ceil(0.1 * numel)", "topk"),
    Mutant("topk: values in another order than their indices", S + "_entries.py", "return x.gather(1, where), where", "return x.gather(1, where).flip(1), where", "topk"),
    Mutant("topk: bytes of 64-bit indices not counted", S + "_sparse_payload.py", "index_sets.encode(indices, numel, coding, steady)", "indices", "topk"),
    Mutant("randomk: with replacement", "kernels/support/reference.py", "inside = edges[:-1] + (words(support.draw, (k,), device) * edges.diff() >> 32)", "inside = words(support.draw, (k,), device) % numel", "randomk"),
    Mutant("randomk: never turned, so some elements are favoured", "kernels/support/reference.py", "(inside + any_index(support.turn, numel, device)) % numel", "inside", "randomk"),
    Mutant("randomk: support differs by rank", S + "randomk.py", 'rng.common("support")', 'rng.private("support")', "randomk"),
    Mutant("randomk: unbiased form not rescaled", S + "randomk.py", "values * (x.shape[1] / values.shape[1]) if", "values if", "randomk"),
    Mutant("signsgd: zero counts as positive", "kernels/signs/reference.py", "torch.where(x == 0, coins(stream, x.shape, x.device), x > 0)", "x >= 0", "signsgd"),
    Mutant("signsgd: ties count as positive", Q + "signsgd.py", 'signs.tosses(rng.groups(groups).shared("coin"), numel, payload.data.device)', "torch.full((groups, packed_bytes(numel, 1)), 255, dtype=torch.uint8)", "signsgd"),
    Mutant("signsgd: averages and calls it a vote", Q + "signsgd.py", "return self.decode(self._majority(payload, numel, rng, groups), numel, rng)", "return self.decode(payload, numel, rng).view(groups, -1, numel).mean(1)", "signsgd"),
    Mutant("signsgd: non-finite flag lost", Q + "signsgd.py", 'return _joined(*signs.encode_or_toss(x, rng.shared("coin")))', 'positive, bad = signs.encode_or_toss(x, rng.shared("coin"))\n        return _joined(positive, torch.zeros_like(bad))', "signsgd"),
    Mutant("signsgd: one bad worker is outvoted", Q + "signsgd.py", ".any(1, keepdim=True)", ".all(1, keepdim=True)", "signsgd"),
    Mutant("efsignsgd: sum of the workers instead of their mean", Q + "_signs.py", "rows.divide_(total, payload.rows // groups)", "total", "efsignsgd"),
    Mutant("efsignsgd: padding counts in the mean", "kernels/signs/reference.py", ".clamp(max=block)", ".clamp(min=block)", "efsignsgd"),
    Mutant("efsignsgd: inverted mask", Q + "_signs.py", "return bits, -scales, scales", "return bits, scales, -scales", "efsignsgd"),
    Mutant("fp16: scale not undone", "codecs/baseline/fp16.py", "x / self.scale", "x", "fp16"),
    Mutant("topkc: energies in half precision", S + "_chunks.py", "energies.to(torch.bfloat16)", "energies.to(torch.float16)", "topkc"),
    Mutant("topkc: every worker selects by itself", S + "_chunks.py", "chunks.agree(energy, self.kept", "chunks.agree(energies[:1].to(torch.bfloat16), self.kept", "topkc"),
    Mutant("topkc: values not scaled", "kernels/chunks/reference.py", "_power_of_two(energy.amax()) / workers", "torch.ones(()) / workers", "topkc"),
    Mutant("topkc: sum instead of mean", S + "_chunks.py", "self._place(from_half(total) / agreed.total", "self._place(from_half(total) / agreed.scale", "topkc"),
    Mutant("powersgd: no warm start", "codecs/lowrank/_alternation.py", "if self.warm and names:", "if False:", "powersgd"),
    Mutant("powersgd: each rank starts from its own factor", "codecs/lowrank/_alternation.py", 'draw.shared(f"powersgd', 'Random(ctx.rng.seed, ranks=ctx.ranks[:1]).private(f"powersgd', "powersgd"),
    Mutant("powersgd: sum instead of mean", "codecs/lowrank/_matrices.py", "share = 1.0 / ctx.workers", "share = 1.0", "powersgd"),
    Mutant("powersgd: basis not orthonormal", "codecs/lowrank/powersgd.py", "return orthonormal(left, shapes)", "return left", "powersgd"),
    Mutant("powersgd: one norm for the whole batch", "codecs/lowrank/powersgd.py", "return orthonormal(left, shapes)", "return left / left.norm()", "powersgd"),
    Mutant("powersgd: vectors lost", "codecs/lowrank/_alternation.py", "whole.vectors], whole.split(found.means))\n        if feedback", "whole.vectors], whole.split(0 * found.means))\n        if feedback", "powersgd"),
    Mutant("error feedback: wrong sign", "core/window.py", "self.out.sub_(own)", "self.out.neg_().add_(own)", "topk"),
    Mutant("error feedback: gamma forgotten", "core/window.py", "x if self.gain == 1 else x.float() * self.gain", "x", "topk"),
    Mutant("error feedback: diverging codecs not scaled", "memory/error_feedback.py", "return Scaled(codec, scale)", "return codec", "qsgd"),
    Mutant("momentum correction: masking forgotten", "memory/momentum_correction.py", "momentum=u if self.masking else None", "momentum=None", "topk"),
    Mutant("memory updated by a non-finite step", "core/state.py", 'if finite.device.type == "cpu" and not bool(finite):', "if False:", "topk"),
    Mutant("a bad element that is not selected stays hidden", "core/codec.py", "return x.masked_fill(bad.isnan(), math.nan)", "return x", "randomk"),
    Mutant("state by position instead of by name", "core/state.py", "wanted.setdefault((row, segment.name), [])", "wanted.setdefault((row, sorted(layout.names)[layout.segments.index(segment)]), [])", "topk"),
    Mutant("all-reduce: sum instead of mean", "collectives/all_reduce.py", "feedback, 1.0 / ctx.workers, ctx.rng", "feedback, 1.0, ctx.rng", "fp16"),
    Mutant("all-reduce: cast before the mean", "collectives/all_reduce.py", "Payload(total), target", "Payload(total * 8 / 8), target", "fp16"),
    Mutant("srg: the owner keeps its exact shard", "collectives/scatter_reduce_gather.py", 'return down.decode_to(rows, target, shard, ctx.rng.fold("down").of((0,), (0,)))', 'flag = down.decode_to(rows, target, shard, ctx.rng.fold("down").of((0,), (0,)))\n        low, first = ctx.ranks[0] * shard, Payload(received.data[:n])\n        out = target.read().clone()\n        part = out[:, low : low + shard]\n        part.copy_(codec.combine(first, shard, ctx.rng.of(range(n), [low] * n))[:, : part.shape[1]])\n        target.write_(out)\n        return flag', "qsgd"),
    Mutant("srg: the owner forgets what re-encoding lost", "collectives/scatter_reduce_gather.py", "out = ctx.state.write(slot, slot.spare(received.data.device))", "out = slot.spare(received.data.device)", "efsignsgd"),
    Mutant("srg: shards cut in the wrong place", "collectives/scatter_reduce_gather.py", "layout.cut(rank * shard, (rank + 1) * shard)", "layout.cut(0, shard)", "efsignsgd"),
    Mutant("owner's errors lost when shards move", "core/codec.py", "    if not ctx.moved:\n", "    if True:\n", "efsignsgd"),
    Mutant("rotted padding", "kernels/rows.py", "F.pad(x, (0, -numel % block))", "F.pad(x, (0, -numel % block), value=1e3)", "efsignsgd"),
    Mutant("packing in the other bit order", "kernels/bitpack/reference.py", "groups[..., i] << (i * width)", "groups[..., i] << (8 - (i + 1) * width)"),
    Mutant("random numbers depend on the cut", "kernels/random/reference.py", "-(-(skip + numel) // 4), device)[skip : skip + numel]", "-(-(skip + numel) // 4), device)[:numel]"),
    Mutant("gather counts one copy", "core/wire.py", "return (workers - 1) * num_bytes\n\n\ndef scattered", "return num_bytes\n\n\ndef scattered"),
    Mutant("tracer misses the second leg", "collectives/trace.py", "round_ += 1", "round_ += 1\n        if round_ == 1:\n            return traced, None"),
    Mutant("unused parameters spend their memory", "unit.py", "out.copy_(torch.where(unused, error, out))", "pass"),
    Mutant("dense part summed, not averaged", "engine.py", "Sum(plain.to(out.dtype) * share)", "Sum(plain.to(out.dtype))"),
    Mutant("onebit: classes mixed up", Q + "onebit.py", "rows.join(-minus, plus", "rows.join(minus, plus", "onebit"),
    Mutant("onebit: sum instead of mean", Q + "_signs.py", "rows.divide_(total, payload.rows // groups)", "total", "onebit"),
    Mutant("signum: momentum is not used", Q + "signum.py", "super().reduce_to(Window.whole(momentum),", "super().reduce_to(source,", "signum"),
    Mutant("lpc: clip ignored", Q + "lpc.py", "high, clip=self.clip)", "high)", "lpc"),
    Mutant("lpc: all ranks round alike", Q + "lpc.py", "    def rule(self, numel: int) -> Rule:\n", '    def noise(self, rng):\n        return rng.shared("round")\n\n    def rule(self, numel: int) -> Rule:\n', "lpc"),
    Mutant("terngrad: all ranks round alike", Q + "terngrad.py", "    def rule(self, numel: int) -> Rule:\n", '    def noise(self, rng):\n        return rng.shared("round")\n\n    def rule(self, numel: int) -> Rule:\n', "terngrad"),
    Mutant("terngrad: a sum of shared scales", Q + "_ranges.py", "scales / rule.high / ctx.workers", "scales / rule.high", "terngrad"),
    Mutant("terngrad: a variance too small", "kernels/grid/__init__.py", "rule.high**2) - 1) / 2\n", "rule.high**2) - 1) / 3\n", "terngrad"),
    Mutant("eightbit: a table of another decade", Q + "_tables.py", "* 10.0 ** (i - 6)", "* 10.0 ** (i - 7)", "eightbit"),
    Mutant("blockint: rotated back by nobody", Q + "_grid.py", 'return rotated_back(y, self.run(numel), numel, rng.shared("signs")) if self.rotates else y', "return y[:, :numel]", "blockint"),
    Mutant("thc: a ring without clamping", Q + "_ring.py", ".clamp_(-top, top)", "", "thc"),
    Mutant("wangni: certain ones drawn again", S + "wangni.py", "drawn &= ~certain", "pass", "wangni"),
    Mutant("gtopk: cut entries are thought sent", S + "_sparse_sums.py", "return torch.where(known,", "return torch.where(known | ~known,", "gtopk"),
    Mutant("threshold: twice the bound", S + "_ragged.py", "x.new_full((x.shape[0],), value)", "x.new_full((x.shape[0],), 2 * value)", "threshold"),
    Mutant("dgc: a warm-up stage too generous", S + "dgc.py", "STAGES = (0.25, 0.0625,", "STAGES = (0.25, 0.25,", "dgc"),
    Mutant("qsparse: claims to show what it does not send", "codecs/hybrid/qsparse.py", "propagates_nonfinite=False,", "propagates_nonfinite=True,", "qsparse"),
    Mutant("elias-fano: one upper bit too few", "kernels/indices/reference.py", "count + ((numel - 1) >> low)", "count + ((numel - 1) >> low) - 1", "topk"),
    Mutant("grid: truncates instead of rounding", "kernels/grid/reference.py", "u = 0.5 if noise is None", "u = 0.0 if noise is None", "blockint"),
    Mutant("hadamard: not normalised", "kernels/hadamard/reference.py", ".rsqrt()", ".rsqrt() * 2", "blockint"),
    Mutant("momentum correction: no clipping", "memory/momentum_correction.py", "        if self.clip:\n", "        if False:\n", "dgc"),
    Mutant("momentum correction: vectors get none", "memory/momentum_correction.py", "return v[:1]", "return mean", "dgc"),
    Mutant("hierarchical: sum of a node instead of its mean", "collectives/hierarchical.py", " * (1.0 / p)", "", "topk"),
    Mutant("hierarchical: owners change with the units", "collectives/hierarchical.py", "            if segment.name not in self.parts:\n", "            if True:\n", "topk"),
    Mutant("hierarchical: pieces of a tensor draw alike", "core/layout.py", 'f"{s.name}\\t{s.start}" if s.start else s.name', "s.name", "qsgd"),
    Mutant("hierarchical: bytes inside a node count as sent", "collectives/meter.py", "        if exchange.team is not None and exchange.team.inside:\n", "        if False:\n", "topk"),
    Mutant("hierarchical: a bad share is noticed if it is the first", "engine.py", "flags = (nonfinite_flag(out),)", "flags = (nonfinite_flag(out[:, : out.shape[1] // self.per_node]),)", "topk"),
    Mutant("topkc: permuted back by nobody", S + "topkc.py", "return mean[:, back], None if own is None else own[:, back]", "return mean, own", "topkc"),
    Mutant("topkc: each rank permutes by itself", S + "topkc.py", 'ctx.rng.common("permutation")', 'ctx.rng.of(ctx.ranks[:1], (0,)).private("permutation")', "topkc"),
    Mutant("powersgd: keeps its factor at another rank", "core/state.py", "fits = entry is not None and entry.tensor.shape == segment.shape", "fits = entry is not None", "powersgd"),
    Mutant("controllers: levels are ignored", "setup.py", "groups.setdefault(self.steering.spec_of(segment.name), [])", "groups.setdefault(self.codec.spec, [])"),
    Mutant("controllers: a switch comes never", "setup.py", "settings = yield from program\n        self.forget_layouts()", "settings = yield from program"),
    Mutant("controllers: memories are dropped at a switch", "setup.py", "settings = yield from program\n", "settings = yield from program\n        self.store.replace(Store())\n"),
    Mutant("controllers: an owner's error is dropped at a switch", "setup.py", "settings = yield from program\n", "settings = yield from program\n        self.store._slots.pop(OWNER_ERROR, None)\n        self.store._loose.pop(OWNER_ERROR, None)\n"),
    Mutant("controllers: the first codec's memory, though it asks for none", "unit.py", "return next((c.traits.memory for c in choices if c.traits.memory != NoMemory.name), NoMemory.name)", "return choices[0].traits.memory"),
    Mutant("controllers: a lossless level makes memories coarse", "core/window.py", "torch.add(x, error, out=out)", "torch.add(x, error.to(x.dtype), out=out)"),
    Mutant("controllers: every codec takes its turn on the network", "core/exchange.py", "    if len(programs) == 1:\n        return [(yield from programs[0])]\n", "    if programs:\n        done = []\n        for program in programs:\n            done.append((yield from program))\n        return done\n"),
    Mutant("controllers: answers go to the wrong codec", "core/exchange.py", "for index, request in round_.items():\n            resume(", "for index, request in reversed(round_.items()):\n            resume("),
    Mutant("controllers: each rank decides by its own norms", "adaptive/steering.py", "mean = yield Sum(self._statistics(names) / workers)", "mean = ((yield Sum(self._statistics(names) / workers)), self._statistics(names))[1]"),
    Mutant("controllers: noise of an epoch's mean counts as gradient", "adaptive/adaqs.py", "((n - 1) * ratio * ratio - 1) / n", "ratio * ratio"),
    Mutant("controllers: norms of the sum over the workers", "adaptive/steering.py", "mean = yield Sum(self._statistics(names) / workers)", "mean = yield Sum(self._statistics(names))"),
    Mutant("controllers: norms follow the loss scale", "adaptive/steering.py", "(x.detach().float() / scale)", "(x.detach().float())"),
    Mutant("controllers: one bad step spoils the norms", "adaptive/steering.py", ".nan_to_num(0.0, 0.0, 0.0)", ".clone()"),
    Mutant("controllers: norms of the last step alone", "adaptive/steering.py", "slot.current.add_(x)", "slot.current.copy_(x)"),
    Mutant("controllers: sums run on over epochs", "adaptive/steering.py", "        self._sums, self._squares, self._steps = Store(), {}, {}\n        return settings\n", "        return settings\n"),
    Mutant("controllers: an unfinished epoch is not saved", "adaptive/steering.py", '"sums": sums,', '"sums": {},'),
    Mutant("controllers: a saved epoch goes on growing", "adaptive/steering.py", "p.entry.tensor.clone() for p in", "p.entry.tensor for p in"),
    Mutant("controllers: levels are not restored", "adaptive/steering.py", 'self._run.load_state_dict(saved["controller"])\n            self._apply()\n', 'self._run.load_state_dict(saved["controller"])\n'),
    Mutant("controllers: what a rule kept is not saved", "adaptive/values.py", '"kept": plain(self.kept)', '"kept": {}'),
    Mutant("controllers: the log of switches is not restored", "adaptive/run.py", 'tuple(map(Switch.from_json, saved["switches"]))', "()"),
    Mutant("controllers: a silent parameter has no norm", "adaptive/steering.py", "dict.fromkeys(self.specs if self.controller.watches else (), 0.0)", "dict.fromkeys((), 0.0)"),
    Mutant("accordion: the first epoch at a lower rate counts", "adaptive/accordion.py", 'if kept.get("fell") != seen.epoch - 1:', "if True:"),
    Mutant("accordion: a fall of the rate goes unseen", "adaptive/accordion.py", "fell = seen.next_learning_rate < self.decay * seen.learning_rate", "fell = False"),
    Mutant("planner: the card is not shared in a scatter", "planner/cost.py", "(g - 1) / p * b, g * (scattered(b, p)", "(g - 1) / p * b, (scattered(b, p)"),
    Mutant("planner: a ring's way back costs no latency", "planner/cost.py", 'hops = 2 * (p - 1) if kind == "sum" else p - 1', "hops = p - 1"),
    Mutant("planner: contention where nothing overlaps", "planner/timeline.py", "slower = shared * overlap.network_slowdown if EXCHANGE in kinds else shared", "slower = shared * overlap.network_slowdown"),
    Mutant("planner: the first bucket is as large as the others", "planner/simulated_buckets.py", "size, limit = 0, first_bytes", "size, limit = 0, cap_bytes"),
    Mutant("planner: an all-gather decodes one gradient", "planner/model.py", "ALL_GATHER: (1.0, float(workers))", "ALL_GATHER: (1.0, 1.0)"),
    Mutant("planner: every micro-batch is exchanged", "planner/model.py", "(accumulate - 1) * work + line.end_seconds", "accumulate * line.end_seconds"),
    Mutant("planner: a training's bytes count the wrong way round", "planner/clock.py", "there.sent_bytes / sent", "sent / there.sent_bytes"),
    Mutant("planner: bytes of buckets are held against those of one unit", "planner/clock.py", ", mode=AFTER)", ")"),
    Mutant("planner: every GPU of a node encodes everything", "planner/model.py", "share = 1 / self.cluster.gpus_per_node if", "share = 1.0 if"),
    Mutant("planner: the slowest rank does not count", "planner/profile.py", "return self.jitter_seconds * latest(ranks)", "return 0.0"),
    Mutant("planner: laws may be negative", "planner/calibrate.py", "step = max(-x[j], sum(row[j] * r for row, r in zip(scaled, left, strict=True)) / norms[j])", "step = sum(row[j] * r for row, r in zip(scaled, left, strict=True)) / norms[j]"),
    # ---- state of steps that were skipped, abandoned and resumed; these name the tests that should catch them
    Mutant("state: a slot's spare is not turned", "core/slots.py", "self.current, self._spare = pending, self.current", "self.current = pending", tests="memory core/test_state.py"),
    Mutant("state: a skipped step is committed all the same", "core/state.py", "            self.discard()\n            return\n", "            pass\n", tests="core/test_state.py test_engine.py"),
    Mutant("state: what a dropped step wanted to do is done with the next", "core/state.py", "        self._jobs.clear()\n", "", tests="core/test_state.py grace/test_adapter_guard.py"),
    Mutant("state: a piece begins where its parameter does", "core/slots.py", "[low - self.start : high - self.start]", "[low : high]", tests="core/test_state.py memory test_engine.py"),
    Mutant("state: what a unit leaves over is lost", "core/state.py", "                left.append(piece.cut(taken, piece.entry.stop))\n", "                pass\n", tests="core/test_state.py memory test_engine.py"),
    Mutant("state: what no unit wants is lost", "core/state.py", "left += [piece] if piece.entry.tensor.numel() else []", "left += []", tests="core/test_state.py memory test_engine.py"),
    Mutant("steps: a resumed run forgets the loss scale of its memories", "steps.py", "torch.tensor(skipped_steps), scale\n", "torch.tensor(skipped_steps), 1.0\n", tests="test_engine.py test_saved_state.py integrations/test_saved_checkpoints.py"),
    Mutant("steps: a skipped step changes the units of memories", "steps.py", "self.kept_scale = self._scale if bool(finite) else self.kept_scale", "self.kept_scale = self._scale", tests="memory/test_memories.py"),
    Mutant("steps: skipped ones are not counted", "steps.py", "self._skipped.cpu() + finite.logical_not()", "self._skipped.cpu()", tests="memory/test_memories.py"),
    Mutant("steps: what was observed counts for the next step, too", "steps.py", "        self._observed = {}\n        self.step += 1\n", "        self.step += 1\n", tests="codecs/test_standing_out.py"),
    Mutant("saved: an outline is not compared", "saved_state.py", "if OUTLINE in state and (what", "if not state and (what", tests="test_saved_state.py"),
    Mutant("saved: states of two steps are taken together", "saved_state.py", 'TOGETHER = ("step", "seed",', 'TOGETHER = ("seed",', tests="test_saved_state.py"),
    Mutant("saved: any format is read", "saved_state.py", "    if version not in READ:\n", "    if False:\n", tests="test_saved_state.py"),
    Mutant("saved: ranks that loaded different checkpoints go on", "session.py", "            self._uncounted(checkpoint.same_step(self.engine, self.device))\n", "            pass\n", tests="integrations/test_saved_checkpoints.py"),
    Mutant("saved: a file is written in place", "trainers/rank_files.py", 'draft = file.with_suffix(".draft")', "draft = file", tests="trainers/test_rank_files.py"),
    Mutant("copies: a copy of an attached model keeps the hook", "integrations/ddp_hook.py", "return list, (others(self),)", "return list, (list(self),)", tests="integrations/test_copies.py"),
    # ---- dtypes
    Mutant("dtypes: codecs of bf16 models work in bf16", "core/window.py", "        return x.to(dtype)\n", "        return x\n", tests="core/test_dtypes.py"),
    Mutant("dtypes: results pass through float16", "core/window.py", "part.copy_(source)", "part.copy_(source.half())", tests="core/test_dtypes.py"),
    Mutant("dtypes: a first error is rounded to half precision", "core/window.py", "out.copy_(x)", "out.copy_(x.half())", tests="memory/test_memories.py core/test_dtypes.py"),
    # ---- bytes from peers
    Mutant("wire: answers are believed", "core/received.py", "                    check(exchange, one)\n", "                    pass\n", tests="codecs/test_corrupt_payloads.py"),
    Mutant("wire: lengths are believed", "collectives/c10d.py", "        check_lengths(incoming, None, exchange)\n", "", tests="integrations/test_alarm.py"),
    Mutant("wire: a codec's limit is forgotten", "core/received.py", "if limit is not None]", "if limit is not None and limit is most]", tests="codecs/test_corrupt_payloads.py"),
    Mutant("wire: indices are believed", "kernels/indices/__init__.py", "not 0 <= int(where.min()) <= int(where.max()) < numel", "False", tests="codecs/test_corrupt_payloads.py"),
    Mutant("wire: short rows are read", "kernels/rows.py", "    if wanted > data.shape[1]:\n", "    if False:\n", tests="codecs/test_corrupt_payloads.py"),
    Mutant("wire: an error names the wrong worker", "core/received.py", "{problem.row % workers}", "{(problem.row + 1) % workers}", tests="codecs/test_corrupt_payloads.py"),
    # ---- ranks that stop
    Mutant("alarm: nobody is told", "collectives/alarm.py", 'self._store.set(f"{self._name}/{kind}", f"{self.rank}:{_summary(problem)}")', "pass", tests="collectives/test_notes.py"),
    Mutant("alarm: a cause is taken for a consequence", "collectives/alarm.py", "kind = CONSEQUENCE if _is_consequence(problem) else FAILED", "kind = FAILED if _is_consequence(problem) else CONSEQUENCE", tests="collectives/test_notes.py"),
    Mutant("alarm: a consequence is not explained", "collectives/alarm.py", "return (found[0] if found else None) or problem", "return problem", tests="collectives/test_notes.py"),
    Mutant("alarm: who waits is not woken", "collectives/executor.py", "            self.given_up = True\n            self._idle.notify_all()\n", "            self.given_up = True\n", tests="integrations/test_alarm.py"),
    Mutant("executor: goes on after a failure", "collectives/executor.py", "            if self.error is None:\n                job()\n", "            job()\n", tests="collectives/test_executor.py"),
    Mutant("executor: the last error counts", "collectives/executor.py", "self.error = self.error or self._told(problem)", "self.error = self._told(problem)", tests="collectives/test_executor.py"),
    Mutant("planner: codecs that fail count as noise", "planner/quality.py", "statistics.median(found)", "statistics.fmean(found)", tests="planner/test_quality.py::test_a_codec_that_fails_says_nothing_about_the_noise_of_others"),
]  # fmt: skip


def plant(mutant: Mutant, into: Path) -> None:
    """Copy the sources and make the one replacement."""
    shutil.copytree(ROOT / "src" / "gradwire", into / "gradwire", ignore=shutil.ignore_patterns("__pycache__"))
    path = into / "gradwire" / mutant.file
    text = path.read_text()
    assert text.count(mutant.old) == 1, f"{mutant.name}: {mutant.old!r} occurs {text.count(mutant.old)} times"
    path.write_text(text.replace(mutant.old, mutant.new))


def survives(mutant: Mutant) -> bool:
    """Run the tests on the mutated copy; True if they all pass."""
    with tempfile.TemporaryDirectory() as folder:
        plant(mutant, Path(folder))
        first = [str(ROOT / "tests" / t) for t in mutant.tests.split() or TESTS]
        chosen = [first] if mutant.tests else [first, [str(ROOT / "tests" / LAST), "-k", mutant.only or "topk"]]
        environment = os.environ | {"PYTHONPATH": folder, "OMP_NUM_THREADS": "1"}
        if not mutant.file.endswith("cpu.py"):  # in a new folder, compiled kernels would have to be compiled again
            environment["GRADWIRE_KERNELS"] = "reference"
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-x",
            "-q",
            "-p",
            "no:cacheprovider",
            "-W",
            "ignore",
            "--rootdir",
            str(ROOT),
        ]
        for tests in chosen:
            done = subprocess.run([*command, *tests], env=environment, cwd=folder, capture_output=True, text=True)
            if done.returncode == 1:
                return False
            assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
        return True


def main(words: list[str]) -> int:
    assert survives(Mutant("nothing changed", "saved_state.py", "FORMAT_VERSION = 3", "FORMAT_VERSION = 3")), (
        "the suite is red"
    )
    chosen = [m for m in MUTANTS if not words or any(w in m.name for w in words)]
    survivors, started = 0, time.monotonic()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for mutant, survived in zip(chosen, pool.map(survives, chosen), strict=True):
            survivors += survived
            print(f"{'SURVIVED' if survived else 'caught  '}  {mutant.name}", flush=True)
    print(f"{len(chosen) - survivors} of {len(chosen)} mutants caught in {time.monotonic() - started:.0f} s")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
