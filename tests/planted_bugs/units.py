"""Units of what is kept: the loss scale, the learning rate, and what repays an owner's debts."""

from __future__ import annotations

from planted_bugs.mutant import Mutant

UNITS = [
    Mutant("units: an error keeps those of its own step", "memory/error_feedback.py", "decay = ctx.rescale if self.beta == 1 else self.beta * ctx.rescale", "decay = self.beta", "memory/test_memories.py::test_scale_of_the_gradient_carries_over_to_the_memory"),
    Mutant("units: a discounted error keeps those of its own step", "memory/error_feedback.py", "decay = ctx.rescale if self.beta == 1 else self.beta * ctx.rescale", "decay = ctx.rescale if self.beta == 1 else self.beta", "memory/test_memories.py"),
    Mutant("units: an error of 8 bits keeps those of its own step", "memory/error_feedback.py", "feedback = Feedback(out, error, decay, self.gamma)", "feedback = Feedback(out, error, self.beta, self.gamma)", "memory/test_memories.py"),
    Mutant("units: a momentum keeps those of its own step", "kernels/momentum/reference.py", "torch.mul(old[0], scale, out=u).mul_(momentum).add_(x)", "torch.mul(old[0], momentum, out=u).add_(x)", "test_saved_state.py::test_a_loaded_state_keeps_its_units_and_gives_them_up_with_the_next_step"),
    Mutant("units: a momentum of Nesterov's keeps those of its own step", "kernels/momentum/reference.py", "        torch.mul(old[0], scale, out=u).add_(x)\n", "        torch.add(old[0], x, out=u)\n", "memory/test_memories.py"),
    Mutant("units: what momentum has not sent keeps those of its own step", "kernels/momentum/reference.py", "torch.mul(old[1], scale, out=v).add_(u)", "torch.add(old[1], u, out=v)", "test_saved_state.py::test_a_loaded_state_keeps_its_units_and_gives_them_up_with_the_next_step"),
    Mutant("units: a compiled momentum keeps those of its own step", "kernels/momentum/cpu.py", "a[i] = kept_u[i] * scale * momentum + g[i]", "a[i] = kept_u[i] * momentum + g[i]", "kernels/test_window.py"),
    Mutant("units: a momentum on a GPU keeps those of its own step", "kernels/momentum/gpu.py", "kept = tl.load(old_u + row, mask=inside, other=0.0) * scale", "kept = tl.load(old_u + row, mask=inside, other=0.0)", "kernels/test_gpu_moves.py"),
    Mutant("units: a momentum on a GPU does not see the scale there", "kernels/momentum/gpu.py", "    if scale_at is not None:\n        scale = tl.load(scale_at)\n", "", "kernels/test_gpu_moves.py"),
    Mutant("units: the change is taken the wrong way round", "steps.py", "self._scale, self.loss_scale = loss_scale / learning_rate, loss_scale", "self._scale, self.loss_scale = learning_rate / loss_scale, loss_scale", "memory/test_memories.py::test_scale_of_the_gradient_carries_over_to_the_memory"),
    Mutant("units: a memory follows the learning rate the wrong way round", "steps.py", "self._scale, self.loss_scale = loss_scale / learning_rate, loss_scale", "self._scale, self.loss_scale = loss_scale * learning_rate, loss_scale", "memory/test_memories.py integrations/test_ddp.py"),
    Mutant("units: those of the first step hold for all", "steps.py", "self.kept_scale = self._scale if bool(finite) else self.kept_scale", "pass", "memory/test_memories.py::test_scale_of_the_gradient_carries_over_to_the_memory"),
    Mutant("units: where the device decides, those of a skipped step hold", "kernels/commit/gpu.py", "tl.store(kept, scale, mask=total == 0)", "tl.store(kept, scale)", "kernels/test_gpu_moves.py kernels/test_recorded_graphs.py"),
    Mutant("units: in plain torch, where the device decides, those of a skipped step hold", "kernels/commit/reference.py", "kept.copy_(torch.where(finite, scale, kept))", "kept.fill_(scale)", "kernels/test_gpu_moves.py"),
    Mutant("units: where the device decides, a skipped step is not counted", "kernels/commit/gpu.py", "tl.store(skipped, tl.load(skipped) + tl.where(total == 0, 0, 1))", "tl.store(skipped, tl.load(skipped))", "kernels/test_gpu_moves.py"),
    Mutant("units: where the device decides, what a skipped step wrote stays", "kernels/commit/gpu.py", "    if total != 0:  # NaN, too\n", "    if total > 0:\n", "kernels/test_gpu_moves.py"),
    Mutant("units: what an owner owes keeps those of its own step", "collectives/scatter_reduce_gather.py", "feedback = Feedback(out, slot.current, ctx.rescale)", "feedback = Feedback(out, slot.current)", "test_saved_state.py collectives/test_strategies.py"),
    Mutant("units: what is repaid keeps those of its own step", "core/codec.py", "x[piece.row, place] += ctx.workers * ctx.rescale * piece", "x[piece.row, place] += ctx.workers * piece", "test_saved_state.py collectives/test_strategies.py"),
    Mutant("units: what is repaid counts as one worker's", "core/codec.py", "x[piece.row, place] += ctx.workers * ctx.rescale * piece", "x[piece.row, place] += ctx.rescale * piece", "integrations/test_ddp_pitfalls.py::test_what_an_owner_owes_is_repaid_although_its_own_shard_stays"),
    Mutant("units: what an owner keeps of an unused parameter keeps those of its own step", "unit.py", "old = 0.0 if slot.current is None else ctx.rescale * slot.current[row, place]", "old = 0.0 if slot.current is None else slot.current[row, place]", "integrations/test_ddp_pitfalls.py::test_what_is_owed_follows_the_loss_scale"),
    Mutant("units: signum's momentum keeps those of its own step", "codecs/quantization/signum.py", "self.beta * ctx.rescale, 1 - self.beta", "self.beta, 1 - self.beta", "codecs/test_quantization.py::test_signum_keeps_its_momentum_in_todays_units"),
    Mutant("units: what elements have gathered keeps those of its own step", "codecs/sparsification/variance.py", "torch.hypot(deviation, kept * ctx.rescale)", "torch.hypot(deviation, kept)", "codecs/test_standing_out.py::test_variance_follows_a_change_of_the_loss_scale"),
    Mutant("units: training slices keep those of their own step", "codecs/lowrank/_components.py", "kept[:, centred:] * ctx.rescale], 1)", "kept[:, centred:]], 1)", "codecs/test_gradiveq.py::test_gradiveq_training_steps_weigh_alike_whatever_the_loss_scale"),
    Mutant("units: a mean slice keeps those of its own step", "codecs/lowrank/_components.py", "    centre = centre * ctx.rescale\n", "", "codecs/test_gradiveq.py"),
    Mutant("units: a loss scale of infinity is believed", "session.py", "if learning_rate > 0 and math.isfinite(loss_scale):", "if learning_rate > 0:", "integrations/test_session.py::test_scales_that_nothing_can_be_divided_by_are_left_out"),
    Mutant("units: a learning rate of zero is divided by", "session.py", "if learning_rate > 0 and math.isfinite(loss_scale):", "if math.isfinite(loss_scale):", "integrations/test_session.py::test_scales_that_nothing_can_be_divided_by_are_left_out"),
    Mutant("units: the scale of the coming step is saved", "checkpoint.py", '"scale": float(engine.kept_scale)', '"scale": engine._scale', "test_saved_state.py::test_a_skipped_step_does_not_change_the_units"),
    Mutant("units: a check compares what is owed with another scale's gradient", "integrations/checks.py", "math.hypot(*norms.values()) * float(self.engine.rescale())", "math.hypot(*norms.values())", "integrations/test_checks.py"),
    Mutant("units: squares that were observed are not those of a mean", "codecs/sparsification/variance.py", "deviation * math.sqrt(self.zeta)", "deviation * self.zeta", "codecs/test_standing_out.py::test_variance_zeta_lets_old_noise_fade"),
]  # fmt: skip
