"""Checkpoints: what is saved, what is refused, and what a resumed run goes on with."""

from __future__ import annotations

from planted_bugs.mutant import Mutant

CHECKPOINTS = [
    Mutant("saved: an outline is not compared", "saved_state.py", "if OUTLINE in state and (what", "if not state and (what", "test_saved_state.py::test_no_part_of_a_state_can_be_missing"),
    Mutant("saved: states of two steps are taken together", "saved_state.py", 'TOGETHER = ("step", "seed",', 'TOGETHER = ("seed",', "test_saved_state.py::test_states_of_different_checkpoints_are_not_put_together"),
    Mutant("saved: any format is read", "saved_state.py", "    if version not in READ:\n", "    if False:\n", "test_saved_state.py::test_other_formats_are_refused_with_advice"),
    Mutant("saved: ranks that loaded different checkpoints go on", "session.py", "            self._uncounted(checkpoint.same_step(self.engine, self.device))\n", "            pass\n", "integrations/test_saved_checkpoints.py::test_every_state_is_plain_and_no_key_of_it_can_be_missing"),
    Mutant("saved: a file is written in place", "trainers/rank_files.py", 'draft = file.with_suffix(".draft")', "draft = file", "trainers/test_rank_files.py::test_a_full_disk_is_a_sentence_and_the_file_before_stays"),
    Mutant("copies: a copy of an attached model keeps the hook", "integrations/ddp_hook.py", "return list, (others(self),)", "return list, (list(self),)", "integrations/test_copies.py::test_the_copy_of_an_attached_model_is_plain_ddp"),
    Mutant("resumed: skipped steps are forgotten", "steps.py", "self._skipped, self.kept_scale = torch.tensor(skipped_steps), scale", "self._skipped, self.kept_scale = torch.tensor(0), scale", "test_saved_state.py integrations/test_ddp_state.py"),
    Mutant("resumed: owners are found anew", "checkpoint.py", "engine.owners = Ownership(per_node, {name: tuple(map(tuple, parts)) for name, parts in owners.items()})", "engine.owners = Ownership(per_node)", "collectives/test_hierarchical.py"),
    Mutant("resumed: the measured link is lost", "checkpoint.py", '    if engine.measured and first.get("link"):', "    if False:", "integrations/test_saved_checkpoints.py collectives/test_link.py integrations/test_ddp_state.py"),
    Mutant("resumed: what all workers have alike is lost", "checkpoint.py", '    for kind, entries in state["common"].items():\n        for name, e in entries.items():\n            store.put', "    for kind, entries in {}.items():\n        for name, e in entries.items():\n            store.put", "core/test_state.py codecs/test_lowrank.py test_saved_state.py"),
    Mutant("resumed: each worker is given the first one's", "checkpoint.py", 'if (state["rank"], state["workers"], _per_node(state)) == (rank, workers, per_node):', 'if (state["workers"], _per_node(state)) == (workers, per_node):', "test_engine.py test_saved_state.py"),
    Mutant("resumed: a state of another rank is taken", "checkpoint.py", '    if sorted(s["rank"] for s in states) == list(range(first["workers"])):\n', "    if True:\n", "test_engine.py::test_states_of_another_set_up_are_refused"),
    Mutant("resumed: what owners owe is given to every worker", "checkpoint.py", "            if first:\n                kept.setdefault(OWNER_ERROR, {})[name] = into\n", "            if True:\n                kept.setdefault(OWNER_ERROR, {})[name] = into\n", "test_engine.py codecs/test_conformance.py::test_codec"),
    Mutant("resumed: a mean over ranks where nodes are meant", "checkpoint.py", "nodes = len(states) // _per_node(states[0])", "nodes = len(states)", "collectives/test_hierarchical.py integrations/test_ddp_hierarchical.py"),
    Mutant("resumed: factors of several pieces are averaged", "checkpoint.py", "        if len(kept) > nodes:\n            return None\n", "", "collectives/test_hierarchical.py integrations/test_ddp_hierarchical.py"),
    Mutant("resumed: what a node owes counts as one rank's", "checkpoint.py", "((ERROR, engine.per_node), (OWNER_ERROR, engine.workers))", "((ERROR, 1), (OWNER_ERROR, engine.workers))", "collectives/test_hierarchical.py"),
    Mutant("resumed: what an owner owes counts as a worker's", "checkpoint.py", "((ERROR, engine.per_node), (OWNER_ERROR, engine.workers))", "((ERROR, engine.per_node), (OWNER_ERROR, 1))", "test_engine.py::test_parameters_that_nobody_used_keep_their_memory"),
    Mutant("resumed: a saved matrix follows the training", "checkpoint.py", '"tensor": e.tensor.clone(), "start": e.start} for name, e in kept', '"tensor": e.tensor, "start": e.start} for name, e in kept', "test_engine.py::test_a_state_dict_holds_tensors_and_plain_values"),
    Mutant("resumed: another codec's state is taken", "checkpoint.py", '        if name != codec.name or state["memory"].partition("(")[0] != memory.name:\n', "        if False:\n", "test_engine.py::test_states_of_another_set_up_are_refused"),
    Mutant("resumed: another model's state is taken", "saved_state.py", "    if saved and different:\n", "    if False:\n", "integrations/test_saved_checkpoints.py::test_a_model_is_another_also_where_its_memories_would_fit"),
    Mutant("resumed: a state with a part missing is taken", "saved_state.py", "            if key not in state:\n", "            if False:\n", "test_saved_state.py::test_no_part_of_a_state_can_be_missing"),
    Mutant("resumed: units are DDP's first buckets", "integrations/handle.py", '        self._units.restore(tuple(tuple(unit) for unit in states[0].get("plan", ())))\n', "", "integrations/test_ddp_state.py"),
    Mutant("resumed: the saved units hold for ever", "integrations/ddp_units.py", "        elif self._first_bucket != first:\n            self._restored = None\n", "        elif self._first_bucket != first:\n            pass\n", "integrations/test_ddp_state.py"),
    Mutant("resumed: units of another model are kept", "integrations/ddp_units.py", "self._restored = plan if sorted(n for u in plan for n in u) == sorted(self._shapes) else None", "self._restored = plan", "integrations/test_ddp_state.py integrations/test_ddp_groups.py"),
    Mutant("resumed: the last learning rate is lost", "integrations/handle.py", '        self._rate = states[0].get("rate", 0.0)\n', "", "integrations/test_ddp_controller.py integrations/test_ddp_state.py"),
    Mutant("resumed: local steps begin at the new anchor", "integrations/local_steps.py", "            unit.anchor = flat.to(unit.anchor.device)\n", "            pass\n", "integrations/test_local_steps.py"),
    Mutant("resumed: local steps begin to count anew", "integrations/local_steps.py", '        self._taken = first["taken"]\n', "", "integrations/test_local_steps.py"),
    Mutant("resumed: a saved anchor follows the training", "integrations/local_steps.py", "name: piece.view(p.shape).clone()\n", "name: piece.view(p.shape)\n", "integrations/test_local_steps.py"),
    Mutant("resumed: what a checkpoint undid is still owed", "integrations/autopilot.py", "        for handle in self._handles.values():  # what they owe is of steps that are undone\n            handle.engine.forget_own()\n", "", "integrations/test_autopilot.py"),
    Mutant("resumed: FSDP2 takes the state of another shard", "integrations/resharding.py", "        if all(state[key] == at[key] for key in AT):\n", "        if True:\n", "integrations/test_resharding.py"),
    Mutant("resumed: what means nothing elsewhere is taken along", "integrations/resharding.py", "            if moves and kind != ERROR:\n", "            if False:\n", "integrations/test_resharding.py"),
    Mutant("resumed: another policy of dividing takes what is owed", "integrations/fsdp.py", "            if not all(part.averages for part in self._parts):\n", "            if False:\n", "integrations/test_resharding.py"),
]  # fmt: skip
