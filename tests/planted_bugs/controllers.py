"""Controllers, which choose codecs by the epoch."""

from __future__ import annotations

from planted_bugs.mutant import Mutant

CONTROLLERS = [
    Mutant("controllers: levels are ignored", "setup.py", "groups.setdefault(self.steering.spec_of(segment.name), [])", "groups.setdefault(self.codec.spec, [])", "adaptive/test_steering.py::test_each_codec_gives_what_it_gives_alone"),
    Mutant("controllers: a switch comes never", "setup.py", "settings = yield from program\n        self.forget_layouts()", "settings = yield from program", "adaptive/test_steering.py::test_a_switch_changes_what_is_sent_from_the_next_step_on"),
    Mutant("controllers: memories are dropped at a switch", "setup.py", "settings = yield from program\n", "settings = yield from program\n        self.store.replace(Store())\n", "adaptive/test_steering.py::test_results_and_what_is_owed_add_up_over_all_switches"),
    Mutant("controllers: an owner's error is dropped at a switch", "setup.py", "settings = yield from program\n", "settings = yield from program\n        self.store._slots.pop(OWNER_ERROR, None)\n        self.store._loose.pop(OWNER_ERROR, None)\n", "adaptive/test_steering.py::test_results_and_what_is_owed_add_up_over_all_switches"),
    Mutant("controllers: the first codec's memory, though it asks for none", "unit.py", "return next((c.traits.memory for c in choices if c.traits.memory != NoMemory.name), NoMemory.name)", "return choices[0].traits.memory", "adaptive/test_steering.py::test_results_and_what_is_owed_add_up_over_all_switches"),
    Mutant("controllers: a lossless level makes memories coarse", "core/window.py", "torch.add(x, error, out=out)", "torch.add(x, error.to(x.dtype), out=out)", "adaptive/test_steering.py::test_half_precision_gradients_keep_a_memory_in_full_precision"),
    Mutant("controllers: every codec takes its turn on the network", "core/exchange.py", "    if len(programs) == 1:\n        return [(yield from programs[0])]\n", "    if programs:\n        done = []\n        for program in programs:\n            done.append((yield from program))\n        return done\n", "adaptive/test_steering.py::test_all_codecs_share_their_round_trips"),
    Mutant("controllers: answers go to the wrong codec", "core/exchange.py", "for index, request in round_.items():\n            resume(", "for index, request in reversed(round_.items()):\n            resume(", "adaptive/test_steering.py::test_each_codec_gives_what_it_gives_alone"),
    Mutant("controllers: each rank decides by its own norms", "adaptive/steering.py", "mean = yield Sum(self._statistics(names) / workers)", "mean = ((yield Sum(self._statistics(names) / workers)), self._statistics(names))[1]", "adaptive/test_steering.py::test_norms_are_those_of_the_workers_own_sums_and_their_mean"),
    Mutant("controllers: noise of an epoch's mean counts as gradient", "adaptive/adaqs.py", "((n - 1) * ratio * ratio - 1) / n", "ratio * ratio", "adaptive/test_controllers.py::test_adaqs_climbs_one_level_whenever_the_ratio_has_halved"),
    Mutant("controllers: norms of the sum over the workers", "adaptive/steering.py", "mean = yield Sum(self._statistics(names) / workers)", "mean = yield Sum(self._statistics(names))", "adaptive/test_steering.py::test_norms_are_those_of_the_workers_own_sums_and_their_mean"),
    Mutant("controllers: norms follow the loss scale", "adaptive/steering.py", "(x.detach().float() / scale)", "(x.detach().float())", "adaptive/test_steering.py::test_norms_are_those_of_the_workers_own_sums_and_their_mean"),
    Mutant("controllers: one bad step spoils the norms", "adaptive/steering.py", ".nan_to_num(0.0, 0.0, 0.0)", ".clone()", "adaptive/test_steering.py::test_a_bad_step_changes_neither_memories_nor_norms"),
    Mutant("controllers: norms of the last step alone", "adaptive/steering.py", "slot.current.add_(x)", "slot.current.copy_(x)", "adaptive/test_steering.py::test_norms_are_those_of_the_workers_own_sums_and_their_mean"),
    Mutant("controllers: sums run on over epochs", "adaptive/steering.py", "        self._sums, self._squares, self._steps = Store(), {}, {}\n        return settings\n", "        return settings\n", "adaptive/test_steering.py::test_every_epoch_is_seen_by_itself"),
    Mutant("controllers: an unfinished epoch is not saved", "adaptive/steering.py", '"sums": sums,', '"sums": {},', "adaptive/test_steering.py::test_a_state_of_the_middle_of_an_epoch_is_continued_bit_for_bit"),
    Mutant("controllers: a saved epoch goes on growing", "adaptive/steering.py", "p.entry.tensor.clone() for p in", "p.entry.tensor for p in", "adaptive/test_steering.py::test_a_saved_state_stays_as_it_is"),
    Mutant("controllers: levels are not restored", "adaptive/steering.py", 'self._run.load_state_dict(saved["controller"])\n            self._apply()\n', 'self._run.load_state_dict(saved["controller"])\n', "adaptive/test_steering.py::test_a_state_of_the_middle_of_an_epoch_is_continued_bit_for_bit"),
    Mutant("controllers: what a rule kept is not saved", "adaptive/values.py", '"kept": plain(self.kept)', '"kept": {}', "adaptive/test_controllers.py::test_a_run_that_is_resumed_in_the_middle_goes_on_as_it_would_have"),
    Mutant("controllers: the log of switches is not restored", "adaptive/run.py", 'tuple(map(Switch.from_json, saved["switches"]))', "()", "adaptive/test_controllers.py::test_a_run_that_is_resumed_in_the_middle_goes_on_as_it_would_have"),
    Mutant("controllers: a silent parameter has no norm", "adaptive/steering.py", "dict.fromkeys(self.specs if self.controller.watches else (), 0.0)", "dict.fromkeys((), 0.0)", "adaptive/test_steering.py::test_a_parameter_without_a_gradient_has_a_norm_of_zero"),
    Mutant("accordion: the first epoch at a lower rate counts", "adaptive/accordion.py", 'if kept.get("fell") != seen.epoch - 1:', "if True:", "adaptive/test_controllers.py::test_the_first_epoch_at_a_lower_rate_decides_nothing"),
    Mutant("accordion: a fall of the rate goes unseen", "adaptive/accordion.py", "fell = seen.next_learning_rate < self.decay * seen.learning_rate", "fell = False", "adaptive/test_controllers.py::test_accordion_gives_the_59_epochs_that_the_published_volume_implies"),
]  # fmt: skip
