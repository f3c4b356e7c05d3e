"""CUDA graphs: what is replayed with stale keys, scales or memories, and what must not be replayed at all."""

from __future__ import annotations

from planted_bugs.mutant import Mutant

GRAPHS = [
    Mutant("graphs: keys are those of the capture", "graphs.py", "        self.recording.fill(step)\n", "        if step < 5:\n            self.recording.fill(step)\n", "kernels/test_recorded_graphs.py::test_replays_give_what_launches_give"),
    Mutant("graphs: keys are never filled in", "graphs.py", "        self.recording.fill(step)\n", "", "kernels/test_recorded_graphs.py::test_replays_give_what_launches_give"),
    Mutant("graphs: keys of another step", "graphs.py", "        self.recording.fill(step)\n", "        self.recording.fill(step + 1)\n", "kernels/test_recorded_graphs.py::test_replays_give_what_launches_give"),
    Mutant("graphs: keys of one stream are used for another", "kernels/recording.py", "return self.numbers[first : first + stream.parts], self.numbers[first + stream.parts : self._used]", "return self.numbers[: stream.parts], self.numbers[first + stream.parts : self._used]", "kernels/test_recorded_graphs.py::test_replays_give_what_launches_give"),
    Mutant("graphs: keys are cut to 63 bits", "kernels/recording.py", "return [*(key - (key >> 63 << 64) for key in stream.keys), *stream.offsets]", "return [*(key & (2**63 - 1) for key in stream.keys), *stream.offsets]", "kernels/test_recorded_graphs.py"),
    Mutant("graphs: a stream of a step is that of all", "core/random.py", "return Stream(keys, self.offsets, lambda step: replace(self, step=step).private(purpose))", "return Stream(keys, self.offsets, lambda step: self.private(purpose))", "kernels/test_recorded_graphs.py::test_replays_give_what_launches_give"),
    Mutant("graphs: gradients may lie anywhere", "graphs.py", "            self.where == where\n            and all(", "            True\n            and all(", "kernels/test_recorded_graphs.py::test_gradients_that_move_are_launched"),
    Mutant("graphs: memories may lie anywhere", "graphs.py", "            and all(slot.current is current and slot.is_spare(pending) for slot, current, pending in self.turns)\n", "", "kernels/test_recorded_graphs.py"),
    Mutant("graphs: a state that moved is not noticed", "graphs.py", "            and all(store.changes == changes for store, changes in self.stores)\n", "            and True\n", "kernels/test_recorded_graphs.py"),
    Mutant("graphs: answers are those of the capture", "graphs.py", "                    to.copy_(tensor)\n", "                    pass\n", "kernels/test_recorded_graphs.py::test_replays_give_what_launches_give"),
    Mutant("graphs: what a replay wrote is not kept", "graphs.py", "tuple(writes.again() for writes in self.result.writes)", "self.result.writes", "kernels/test_recorded_graphs.py::test_replays_give_what_launches_give"),
    Mutant("graphs: a transaction made again writes nothing", "core/state.py", "        other._pending = dict(self._pending)\n", "", "kernels/test_recorded_graphs.py::test_replays_give_what_launches_give"),
    Mutant("graphs: the units of a capture hold for all", "engine.py", "where = (*(lies(t) for t in (x, out)), scratch, *scales)", "where = (*(lies(t) for t in (x, out)), scratch)", "kernels/test_recorded_graphs.py::test_a_new_loss_scale_is_followed"),
    Mutant("graphs: the end of a step has the units of its capture", "steps.py", "return self.graphs.repeat((*map(lies, tensors), self._scale), end)", "return self.graphs.repeat((*map(lies, tensors),), end)", "kernels/test_recorded_graphs.py"),
    Mutant("graphs: the end of a step does not know where memories lie", "steps.py", "return self.graphs.repeat((*map(lies, tensors), self._scale), end)", "return self.graphs.repeat((self._scale,), end)", "kernels/test_recorded_graphs.py"),
    Mutant("graphs: a warm-up is captured", "engine.py", "self.step >= f.codec.steady_from_step and f.codec.traits.fixed_size", "f.codec.traits.fixed_size", "kernels/test_recorded_graphs.py::test_what_only_one_step_is_told_is_launched"),
    Mutant("graphs: sizes that vary are captured", "engine.py", "self.step >= f.codec.steady_from_step and f.codec.traits.fixed_size", "self.step >= f.codec.steady_from_step", "kernels/test_recorded_graphs.py::test_what_only_one_step_is_told_is_launched"),
    Mutant("graphs: what was observed is replayed", "engine.py", "return steady and not self._observed and not", "return steady and not", "kernels/test_recorded_graphs.py::test_what_only_one_step_is_told_is_launched"),
    Mutant("graphs: a measured error is that of the capture", "engine.py", "return steady and not self._observed and not self._measures(self.split(layout))", "return steady and not self._observed", "kernels/test_recorded_graphs.py::test_what_only_one_step_is_told_is_launched"),
    Mutant("graphs: a resumed run replays the old one", "steps.py", "        super().forget_layouts()\n        self.graphs.forget()\n", "        super().forget_layouts()\n", "kernels/test_recorded_graphs.py"),
    Mutant("graphs: what lies outside of slots is replayed", "graphs.py", "    if not all(writes.slots_only for writes in written):\n", "    if False:\n", "kernels/test_recorded_graphs.py::test_what_cannot_be_repeated_is_launched_and_says_why"),
    Mutant("graphs: matrices that are put count as slots", "core/state.py", '                f"of {name!r}; write torch.tensor(...) of it"\n            )\n        self.slots_only = False\n', '                f"of {name!r}; write torch.tensor(...) of it"\n            )\n', "kernels/test_recorded_graphs.py::test_what_cannot_be_repeated_is_launched_and_says_why"),
    Mutant("graphs: a number that the host waited for is replayed", "kernels/recording.py", "        if func is torch.ops.aten._local_scalar_dense.default:\n            raise", "        if False:\n            raise", "kernels/test_recorded_graphs.py::test_what_cannot_be_repeated_is_launched_and_says_why"),
    Mutant("graphs: keys that the host knows are replayed", "kernels/recording.py", "    if recording() is not None:\n        raise NotRepeatable(what)\n", "    pass\n", "kernels/test_recorded_graphs.py::test_what_cannot_be_repeated_is_launched_and_says_why"),
    Mutant("graphs: rows of changing size are replayed", "graphs.py", "    if answer.lengths is not None:\n        raise", "    if False:\n        raise", "kernels/test_recorded_graphs.py::test_what_cannot_be_repeated_is_launched_and_says_why"),
    Mutant("graphs: a program that exchanges differently is replayed", "graphs.py", "    if result is None or len(requests) != len(unit.answers):\n", "    if result is None:\n", "kernels/test_recorded_graphs.py::test_what_cannot_be_repeated_is_launched_and_says_why"),
    Mutant("graphs: captured before memories have begun", "graphs.py", "WARM = 2 ", "WARM = 0 ", "kernels/test_recorded_graphs.py"),
    Mutant("graphs: captures that fail are tried for ever", "graphs.py", 'self.refusal = f"captures failed: {problem}" if self.failures == TRIES else None', "self.refusal = None", "kernels/test_recorded_graphs.py::test_captures_that_fail_are_tried_again_and_then_no_more"),
    Mutant("graphs: a capture that fails is the last try", "graphs.py", 'self.refusal = f"captures failed: {problem}" if self.failures == TRIES else None', 'self.refusal = f"captures failed: {problem}"', "kernels/test_recorded_graphs.py::test_captures_that_fail_are_tried_again_and_then_no_more"),
    Mutant("graphs: tensors that move are captured for ever", "graphs.py", "            if len(self.captures) == MOST:\n", "            if False:\n", "kernels/test_recorded_graphs.py"),
    Mutant("graphs: cannot be switched off", "graphs.py", 'self.wanted = wanted and os.environ.get("GRADWIRE_GRAPHS") != "off"', "self.wanted = wanted", "kernels/test_recorded_graphs.py::test_the_environment_can_switch_graphs_off"),
    Mutant("graphs: Python frees memory in the middle of a capture", "graphs.py", "    gc.disable()\n", "", "kernels/test_recorded_graphs.py"),
]  # fmt: skip
