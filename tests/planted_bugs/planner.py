"""The planner's model, and what it is fitted to."""

from __future__ import annotations

from planted_bugs.mutant import Mutant

PLANNER = [
    Mutant("planner: the card is not shared in a scatter", "planner/cost.py", "(g - 1) / p * b, g * (scattered(b, p)", "(g - 1) / p * b, (scattered(b, p)", "planner/test_cost.py::test_gpus_of_a_node_share_its_card"),
    Mutant("planner: a ring's way back costs no latency", "planner/cost.py", 'hops = 2 * (p - 1) if kind == "sum" else p - 1', "hops = p - 1", "planner/test_cost.py::test_four_hosts_with_one_gpu_each"),
    Mutant("planner: contention where nothing overlaps", "planner/timeline.py", "slower = shared * overlap.network_slowdown if EXCHANGE in kinds else shared", "slower = shared * overlap.network_slowdown", "planner/test_timeline.py::test_an_exchange_slows_backward_only_while_it_lasts"),
    Mutant("planner: the first bucket is as large as the others", "planner/simulated_buckets.py", "size, limit = 0, first_bytes", "size, limit = 0, cap_bytes", "planner/test_buckets.py::test_as_ddp_fills_them"),
    Mutant("planner: an all-gather decodes one gradient", "planner/workload.py", "encodes, decodes = _numbers(traced, workers)", "encodes, decodes = 1.0, 1.0", "planner/test_model.py::test_all_gather_decodes_and_holds_everybody"),
    Mutant("planner: every micro-batch is exchanged", "planner/model.py", "(accumulate - 1) * work + line.end_seconds", "accumulate * line.end_seconds", "planner/test_model.py::test_accumulation_exchanges_once"),
    Mutant("planner: a training's bytes count the wrong way round", "planner/clock.py", "there.sent_bytes / sent", "sent / there.sent_bytes", "planner/test_tta.py::test_a_round_sends_what_it_sent_in_the_training"),
    Mutant("planner: bytes of buckets are held against those of one unit", "planner/clock.py", ", mode=AFTER)", ")", "planner/test_tta.py::test_a_training_that_compressed_the_whole_gradient_is_not_held_against_buckets"),
    Mutant("planner: every GPU of a node encodes everything", "planner/model.py", "share = 1 / self.cluster.gpus_per_node if", "share = 1.0 if", "planner/test_model.py::test_hierarchical_spares_the_card_and_the_encoder"),
    Mutant("planner: the slowest rank does not count", "planner/profile.py", "return self.jitter_seconds * latest(ranks)", "return 0.0", "planner/test_calibrate.py::test_the_slowest_rank_counts"),
    Mutant("planner: laws may be negative", "planner/calibrate.py", "step = max(-x[j], sum(row[j] * r for row, r in zip(scaled, left, strict=True)) / norms[j])", "step = sum(row[j] * r for row, r in zip(scaled, left, strict=True)) / norms[j]", "planner/test_calibrate.py::test_least_squares"),
    Mutant("tta: a lossy codec is ranked by time alone", "planner/tta.py", "key=lambda row: (row.lossy, soonest(row))", "key=soonest", "planner/test_tta.py::test_what_our_trainings_call_lossy_is_marked_and_comes_last"),
    Mutant("luck: chance counts as luck", "planner/luck.py", "if found.low > 0 or found.high < 0", "if found", "planner/test_luck.py::test_what_codecs_do_not_agree_on_is_no_luck"),
    Mutant("luck: is added, not taken off", "planner/luck.py", "-self.raised.get(seed, 0.0)", "self.raised.get(seed, 0.0)", "planner/test_luck.py::test_luck_is_what_codecs_have_in_common"),
    Mutant("luck: a target is moved the wrong way", "planner/tta.py", "of_seeds.on(target, seed)", "of_seeds.off(target, seed)", "planner/test_luck.py::test_a_target_is_as_much_easier_as_a_seed_is_unlucky"),
    Mutant("luck: claims count it", "laboratory/reproduce/evidence.py", "fmean(self.luck.bests(each))", "each.best", "planner/test_luck.py::test_claims_compare_without_luck"),
    Mutant("quality: a training with another memory counts", "planner/quality.py", "(e.memory == memory if memory else (e.memory != NO_MEMORY) == keeps(codec))", "True", "planner/test_tta.py::test_what_our_trainings_call_lossy_is_marked_and_comes_last"),
    Mutant("claims: a simulation that one set of inputs gives is reproduced", "laboratory/reproduce/claims/numbers.py", "if printed is not None and printed is fitted:", "if printed is not None:", "laboratory/reproduce/test_rules.py::test_the_study_is_open_where_inputs_readings_or_the_model_decide"),
    Mutant("claims: quiet windows count for the Hessian's", "laboratory/reproduce/claims/accordion_batch.py", "judge(at_least(both / either, SAME, one)", "judge(at_least(1 - (either - both) / len(windows), SAME, one)", "laboratory/reproduce/test_rules.py::test_critical_regimes_are_compared_over_the_longest_training"),
    Mutant("claims: the Hessian is of the first training", "laboratory/reproduce/claims/accordion_batch.py", "looks = max(trainings.values(), key=lambda found: int(found[0][1].what[\"epochs\"]))", "looks = next(iter(trainings.values()))", "laboratory/reproduce/test_rules.py::test_critical_regimes_are_compared_over_the_longest_training"),
    Mutant("curvature: one batch stands for all", "laboratory/bench/curvature.py", "return total / len(sample)", "return total", "laboratory/bench/test_curvature.py::test_products_are_those_of_the_mean_hessian"),
    Mutant("curvature: norms learn from a look", "laboratory/bench/curvature.py", "    model.eval()\n", "", "laboratory/bench/test_curvature.py::test_products_of_real_nets_are_differences_of_gradients"),
    Mutant("curvature: the norm is the last round's", "laboratory/bench/curvature.py", "self.sum += rows.mean(0)", "self.sum = rows.mean(0)", "laboratory/bench/test_curvature.py::test_the_norm_is_of_the_sum_of_an_epochs_gradients"),
    Mutant("claims: an open premise is taken for granted", "laboratory/reproduce/claims/accordion.py", "                keeps_up,\n", "", "laboratory/reproduce/test_rules.py::test_what_takes_for_granted_that_accordion_keeps_up_is_open_where_that_is"),
    Mutant("grid: FP16 casts slower where codecs encode slower", "laboratory/reproduce/ours.py", "encode_speed=1.0 if codec in DDP else setup.encode_speed", "encode_speed=setup.encode_speed", "laboratory/reproduce/test_two_hundred.py::test_slower_encoding_never_wins_more"),
]  # fmt: skip
