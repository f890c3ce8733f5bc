"""The trainer's update: accumulation, reproducibility, masks, versions, failures."""

import copy
import dataclasses
import json
import math
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from saves import read_tensors, rewritten, saved
from tiny_models import (
    build,
    gradients,
    make_groups,
    naive_log_probs,
    relative_error,
    response_log_probs,
    weights,
)
from transformers import AutoModelForCausalLM

from rollcast.engine.edges import SampledGroup, SampledRollout
from rollcast.engine.errors import NonFiniteLoss
from rollcast.engine.options import DAPO, GRPO, GSPO, LossConfig, TrainerConfig
from rollcast.engine.trainer.adapters import published
from rollcast.engine.trainer.microbatch import dense_width, pack, plan_packing
from rollcast.engine.trainer.reference import of_its_own
from rollcast.engine.trainer.shards import Gathered
from rollcast.engine.trainer.trainer import Trainer
from rollcast.simulator.errors import RunError, ScenarioError

torch.set_num_threads(1)

GROUPS = make_groups([(6, [5, 1, 8, 3]), (11, [2, 7, 4]), (3, [6, 6])], seed=2)
LOSSES = {"grpo": GRPO, "dapo": DAPO, "gspo": dataclasses.replace(GSPO, clip_low=0.2, clip_high=9)}


def same(a: dict[str, Any], b: dict[str, Any]) -> bool:
    return all(torch.equal(a[name], b[name]) for name in a)


def with_rollout(groups: Any, **changes: Any) -> list[SampledGroup]:
    """The same groups, the first rollout of the last one changed."""
    group = groups[-1]
    first = dataclasses.replace(group.rollouts[0], **changes)
    return [*groups[:-1], dataclasses.replace(group, rollouts=[first, *group.rollouts[1:]])]


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("shared", [False, True])
def test_microbatches_accumulate_to_one_large_batch(name, shared):
    model = build("llama")
    whole = TrainerConfig(loss=LOSSES[name], max_grad_norm=None, microbatch_tokens=10_000)
    truth = gradients(model, GROUPS, whole, False)
    for tokens in (1, 17, 40):
        small = dataclasses.replace(whole, microbatch_tokens=tokens)
        assert relative_error(gradients(model, GROUPS, small, shared), truth) < 1e-11


def test_one_step_is_adamw_on_the_clipped_gradient():
    config = TrainerConfig(learning_rate=1e-2, max_grad_norm=0.1, weight_decay=0.1)
    model = build("qwen3")
    grads = gradients(model, GROUPS, dataclasses.replace(config, max_grad_norm=None), False)
    norm = math.sqrt(sum(float(g.pow(2).sum()) for g in grads.values()))
    before = weights(model)
    metrics = Trainer(model, config).step(GROUPS, shared_prefix=False, version=0)
    assert norm > 0.1
    assert metrics.grad_norm == pytest.approx(norm, rel=1e-9)
    for name, weight in weights(model).items():
        g = grads[name] * (0.1 / (norm + 1e-6))
        # AdamW's first step: the bias-corrected moments are g and g * g.
        expected = before[name] * (1 - 1e-2 * 0.1) - 1e-2 * g / (g.abs() + 1e-8)
        assert torch.allclose(weight, expected, atol=1e-9), name


def test_equal_seeds_give_equal_weights_and_others_do_not():
    def run(seed: int) -> dict[str, Any]:
        model = build("qwen3", torch.float32)
        config = TrainerConfig(learning_rate=1e-2, minibatches=3, epochs=2, seed=seed)
        trainer = Trainer(model, config)
        for _ in range(2):
            metrics = trainer.step(GROUPS, shared_prefix=True, version=0)
        assert metrics.updates == 6
        return weights(model)

    assert same(run(0), run(0))
    assert not same(run(0), run(1))


def test_a_step_is_undone_when_its_last_loss_is_not_finite():
    nan = [math.nan] * len(GROUPS[-1].rollouts[0].response)
    bad = with_rollout(GROUPS, log_probs=nan)
    config = TrainerConfig(learning_rate=1e-2, minibatches=3, epochs=2)
    model, twin = build("qwen3", torch.float32), build("qwen3", torch.float32)
    trainer, untouched = Trainer(model, config), Trainer(twin, config)
    for t in (trainer, untouched):
        t.step(GROUPS, shared_prefix=False, version=0)
    before = weights(model)
    for shared in (False, True):
        with pytest.raises(NonFiniteLoss, match="nan") as caught:
            trainer.step(bad, shared_prefix=shared, version=0)
        assert isinstance(caught.value, RunError)
        assert same(weights(model), before)
        assert all(p.grad is None for p in model.parameters())
    # Optimiser and random state are as before too: the next step is as if nothing had happened.
    for t in (trainer, untouched):
        t.step(GROUPS, shared_prefix=False, version=0)
    assert same(weights(model), weights(twin))


def test_a_gradient_that_is_not_finite_stops_the_step():
    model = build("qwen3", torch.float32)
    trainer = Trainer(model)
    before = weights(model)
    model.lm_head.weight.register_hook(lambda grad: grad * math.inf)
    with pytest.raises(NonFiniteLoss, match="gradient"):
        trainer.step(GROUPS, shared_prefix=False, version=0)
    assert same(weights(model), before)


def test_tokens_of_earlier_versions_are_left_out():
    group = make_groups([(5, [6, 6])], seed=4)[0]
    mixed = [
        dataclasses.replace(r, versions=[0, 0, 1, 1, 2, 2], reward=float(i))
        for i, r in enumerate(group.rollouts)
    ]
    old = SampledGroup(group.prompt, mixed, [0.0, 1.0])
    trainer = Trainer(build("qwen3"))
    metrics = trainer.step([old], shared_prefix=False, version=2, mask_before_version=2)
    assert (metrics.trained_tokens, metrics.masked_tokens) == (4, 8)

    # What masked tokens were sampled with does not matter, what the others were does.
    wide = LossConfig(clip_low=0.999, clip_high=1e6, sequence_ratio=True)
    config = TrainerConfig(max_grad_norm=None, loss=wide)

    def gradient(at: int) -> dict[str, Any]:
        log_probs = list(mixed[0].log_probs)
        log_probs[at] += 0.05
        changed = [dataclasses.replace(mixed[0], log_probs=log_probs), mixed[1]]
        groups = [SampledGroup(group.prompt, changed, [0.0, 1.0])]
        return gradients(build("qwen3"), groups, config, True, mask_before_version=2)

    assert relative_error(gradient(0), gradient(3)) < 1e-12
    assert relative_error(gradient(0), gradient(4)) > 1e-3


def test_nothing_left_to_train_on_updates_nothing():
    model = build("qwen3", torch.float32)
    before = weights(model)
    trainer = Trainer(model, TrainerConfig(learning_rate=0.1, weight_decay=0.1))
    masked = trainer.step(GROUPS, shared_prefix=True, version=3, mask_before_version=1)
    assert (masked.updates, masked.trained_tokens, masked.mean_ratio) == (0, 0, 1.0)
    assert same(weights(model), before)


def test_dapo_leaves_out_groups_without_variance():
    flat = make_groups([(4, [3, 3])], seed=0)[0]
    flat = SampledGroup(
        flat.prompt, [dataclasses.replace(r, reward=0.1) for r in flat.rollouts], [0.1, 0.1]
    )
    model = build("llama")
    config = TrainerConfig(loss=DAPO, max_grad_norm=None)
    truth = gradients(model, GROUPS, config, False)
    assert relative_error(gradients(model, [flat, *GROUPS], config, False), truth) < 1e-12
    diluted = dataclasses.replace(config, loss=dataclasses.replace(DAPO, drop_zero_variance=False))
    assert relative_error(gradients(model, [flat, *GROUPS], diluted, False), truth) > 0.01
    assert Trainer(model, config).step([flat], shared_prefix=True, version=0).updates == 0


def sampled_with_ratio(model: Any, ratio: float) -> list[SampledGroup]:
    """The groups, each token sampled with that much less probability than the model gives it."""
    own = response_log_probs(Trainer(model), GROUPS)
    return [
        dataclasses.replace(
            group,
            rollouts=[
                dataclasses.replace(r, log_probs=[x - math.log(ratio) for x in row])
                for r, row in zip(group.rollouts, rows, strict=True)
            ],
        )
        for group, rows in zip(GROUPS, own, strict=True)
    ]


def test_the_ratio_is_to_what_each_token_was_sampled_with():
    model = build("qwen3")
    shifted = sampled_with_ratio(model, 1.1)
    tiny = {"learning_rate": 1e-12}
    sampled = Trainer(model, TrainerConfig(**tiny))
    metrics = sampled.step(shifted, shared_prefix=True, version=0)
    assert metrics.mean_ratio == pytest.approx(1.1, rel=1e-6)
    again = Trainer(model, TrainerConfig(old_log_probs="trainer", **tiny))
    metrics = again.step(shifted, shared_prefix=True, version=0)
    assert metrics.mean_ratio == pytest.approx(1.0, rel=1e-6)
    assert metrics.log_prob_s > 0


def test_truncated_importance_weights_scale_the_gradient():
    model = build("qwen3")
    groups = sampled_with_ratio(model, 1.5)
    plain = TrainerConfig(old_log_probs="trainer", max_grad_norm=None)
    truth = gradients(model, groups, plain, False)
    for cap, factor in ((2.0, 1.5), (1.2, 1.2)):
        loss = dataclasses.replace(GRPO, importance_cap=cap)
        found = gradients(model, groups, dataclasses.replace(plain, loss=loss), True)
        assert relative_error(found, {n: g * factor for n, g in truth.items()}) < 1e-11


def test_advantages_come_from_the_baseline_rewards():
    model = build("qwen3")
    config = TrainerConfig(max_grad_norm=None)
    group = GROUPS[0]
    wide = dataclasses.replace(group, baseline_rewards=[-5.0, 0.0, 0.0, 1.0, 1.0, 5.0])
    narrow = gradients(model, [group], config, True)
    assert relative_error(gradients(model, [wide], config, True), narrow) > 0.1


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_log_probs_are_the_models_at_the_sampling_temperature(temperature):
    model = build("qwen3")
    trainer = Trainer(model, TrainerConfig(temperature=temperature))
    found = response_log_probs(trainer, GROUPS)
    scaled = copy.deepcopy(model)
    scaled.lm_head.weight.data /= temperature
    for group, rows in zip(GROUPS, found, strict=True):
        for rollout, row in zip(group.rollouts, rows, strict=True):
            expected = naive_log_probs(scaled, group.prompt, rollout.response).tolist()
            assert row == pytest.approx(expected, abs=1e-10)


@pytest.mark.parametrize("tied", [False, True])
def test_a_state_continues_where_it_stopped(tmp_path, tied):
    config = TrainerConfig(learning_rate=1e-2, minibatches=2)
    model = build("qwen3", torch.float32, tie_word_embeddings=tied)
    trainer = Trainer(model, config)
    trainer.step(GROUPS, shared_prefix=False, version=0)
    save = saved(trainer, tmp_path / "save")
    trainer.step(GROUPS, shared_prefix=False, version=0)
    other = build("qwen3", torch.float32, tie_word_embeddings=tied)
    resumed = Trainer(other, dataclasses.replace(config, seed=7))
    resumed.load(save)
    resumed.step(GROUPS, shared_prefix=False, version=0)
    assert same(weights(model), weights(other))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model/lm_head.weight": None}, "lm_head.weight is missing"),
        ({"model/more": torch.zeros(1)}, "more is none of this model's"),
        ({"else": torch.zeros(1)}, "else is none of a trainer's"),
        ({"model/lm_head.weight": torch.zeros(2, 3)}, r"lm_head.weight is \[2, 3\] in"),
        ({"optimizer/0/exp_avg": torch.zeros(1)}, "0/exp_avg is not of its parameter's shape"),
        ({"optimizer/0/exp_avg": None}, "exp_avg is missing"),
        ({"optimizer/999/exp_avg": torch.zeros(1)}, "999/exp_avg belongs to no parameter"),
        ({"random/cpu": None}, "random generator is of no use"),
        ({"random/cpu": torch.zeros(3, dtype=torch.uint8)}, "random generator is of no use"),
    ],
)
def test_a_state_of_something_else_is_refused(tmp_path, change, message):
    trainer = Trainer(build("qwen3", torch.float32), TrainerConfig(learning_rate=1e-2))
    trainer.step(GROUPS, shared_prefix=False, version=0)
    save = saved(trainer, tmp_path / "save")
    tensors = {n: t for n, t in (read_tensors(save.folder) | change).items() if t is not None}
    with pytest.raises(ValueError, match=message):
        trainer.load(rewritten(save, tensors, tmp_path / "other"))
    if "model/more" not in change:
        return
    for shuffle in (None, 3, [3, [1, 2], None], [3, ["x"] * 625, None], [9, [1] * 625, None]):
        with pytest.raises(ValueError, match="random generator is of no use"):
            trainer.load(dataclasses.replace(save, plain={"shuffle": shuffle}))


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (lambda path: path.unlink(), "is missing"),
        (lambda path: path.write_bytes(path.read_bytes()[:-1] + b"?"), "match its checksum"),
        (lambda path: path.with_name("shard-00009.safetensors").touch(), "is of another save"),
    ],
)
def test_files_that_are_not_what_was_saved_are_refused(tmp_path, harm, message):
    trainer = Trainer(build("qwen3", torch.float32), TrainerConfig(learning_rate=1e-2))
    save = saved(trainer, tmp_path / "save")
    harm(next(save.folder.iterdir()))
    with pytest.raises(ValueError, match=message):
        trainer.load(save)


def test_a_full_disk_is_said_and_training_goes_on(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    trainer = Trainer(build("qwen3", torch.float32), TrainerConfig(learning_rate=1e-2))
    with monkeypatch.context() as patch:
        patch.setattr("torch.distributed.checkpoint.HuggingFaceStorageWriter.write_data", full)
        trainer.save(tmp_path / "save")
        with pytest.raises(RunError, match=r"cannot save the run to .*: No space left on device"):
            trainer.saved(100.0)
    trainer.step(GROUPS, shared_prefix=False, version=0)
    assert saved(trainer, tmp_path / "again").files


@pytest.mark.parametrize("kind", ["qwen3", "llama", "qwen3_moe"])
@pytest.mark.parametrize("tied", [False, True])
def test_the_model_is_kept_as_the_hub_has_it(tmp_path, kind, tied):
    model = build(kind, torch.float32, tie_word_embeddings=tied)
    trainer = Trainer(model, TrainerConfig(learning_rate=1e-2))
    trainer.step(GROUPS, shared_prefix=False, version=0)
    for dtype in ("float32", "bfloat16"):
        trainer.export(tmp_path / dtype, dtype)
        kept = AutoModelForCausalLM.from_pretrained(tmp_path / dtype)
        assert kept.dtype == getattr(torch, dtype)
        assert (
            type(kept).__name__
            == json.loads((tmp_path / dtype / "config.json").read_text())["architectures"][0]
        )
        for name, tensor in kept.state_dict().items():
            assert torch.equal(tensor, model.state_dict()[name].to(kept.dtype)), name


def test_it_learns_which_token_pays():
    model = build("qwen3", torch.float32, initializer_range=0.05)
    trainer = Trainer(model, TrainerConfig(learning_rate=5e-3))
    prompt, tokens = [3, 1, 4, 1, 5], list(range(8))
    first = None
    for step in range(12):
        probe = [SampledGroup(prompt, [_one(t, 0.0) for t in tokens], [0.0])]
        log_probs = [row[0] for row in response_log_probs(trainer, probe)[0]]
        first = first if first is not None else log_probs[5]
        rollouts = [
            SampledRollout([t], [lp], [step], float(t == 5))
            for t, lp in zip(tokens, log_probs, strict=True)
        ]
        rewards = [r.reward for r in rollouts]
        trainer.step(
            [SampledGroup(prompt, rollouts, rewards)], shared_prefix=step % 2 == 0, version=step
        )
    assert math.exp(log_probs[5]) > 10 * math.exp(first)


def _one(token: int, log_prob: float) -> SampledRollout:
    return SampledRollout([token], [log_prob], [0], 0.0)


def test_expert_counts_are_those_of_each_updates_own_batch_and_weights():
    """The pass for old log-probabilities counts experts too, but only one update may use that."""
    config = TrainerConfig(learning_rate=1e-2, router_aux_coefficient=1.0)
    for changes in ({"minibatches": 2}, {"epochs": 2}):
        losses = []
        for old in ("sampled", "trainer"):
            model = build("mixtral")
            # The policy loss is held at 0, so that both runs take the same way.
            flat = [
                dataclasses.replace(
                    group,
                    rollouts=[dataclasses.replace(r, reward=0.0) for r in group.rollouts],
                    baseline_rewards=[0.0],
                )
                for group in GROUPS
            ]
            trainer = Trainer(model, dataclasses.replace(config, old_log_probs=old, **changes))
            losses.append(trainer.step(flat, shared_prefix=True, version=0).aux_loss)
        assert losses[0] == pytest.approx(losses[1], rel=1e-12)


@pytest.mark.parametrize("shared", [False, True])
def test_checkpointing_keeps_less_for_the_backward(shared):
    kept = {}
    for checkpoint in ("none", "all"):
        model = build("qwen3", torch.float32)
        trainer = Trainer(model, TrainerConfig(checkpoint=checkpoint))
        trainer.step(GROUPS, shared_prefix=shared, version=0)  # the layout's check is behind it
        sizes: list[int] = []

        def keep(x: Any, sizes: list[int] = sizes) -> Any:
            sizes.append(x.numel())
            return x

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
            trainer.step(GROUPS, shared_prefix=shared, version=0)
        kept[checkpoint] = sum(sizes)
    assert kept["all"] < 0.5 * kept["none"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_metrics_count_what_was_computed(dtype):
    model = build("qwen3", dtype)
    trainer = Trainer(model, TrainerConfig(microbatch_tokens=30))
    dense = trainer.step(GROUPS, shared_prefix=False, version=0)
    shared = trainer.step(GROUPS, shared_prefix=True, version=0)
    prompts, responses = [6] * 4 + [11] * 3 + [3] * 2, [5, 1, 8, 3, 2, 7, 4, 6, 6]
    assert dense.computed_tokens == sum(prompts) + sum(responses) - 9
    assert shared.computed_tokens == (5 + 10 + 2) + sum(responses)
    assert dense.trained_tokens == shared.trained_tokens == sum(responses)
    for metrics in (dense, shared):
        assert metrics.rollouts == 9
        assert all(p.grad is None for p in model.parameters())
        assert metrics.total_s > metrics.forward_s > 0
        assert min(metrics.backward_s, metrics.gradient_s, metrics.optimizer_s) > 0
        assert math.isfinite(metrics.loss)
        assert metrics.peak_bytes is None


def test_packing_keeps_every_rollout_within_the_budget():
    examples = Trainer(build("llama", torch.float32))._examples(GROUPS, 0, None)
    for budget in (1, 15, 25, 1000):
        batches = pack(examples, dense_width, budget)
        assert sorted(map(id, (e for b in batches for e in b))) == sorted(map(id, examples))
        for batch in batches:
            width = max(map(dense_width, batch))
            assert len(batch) == 1 or width * len(batch) <= budget
    budgets = {"budget_tokens": 25, "suffix_budget_tokens": 10}
    for prefixes, together in ((1, [[10], [5], [2]]), (14, [[10], [5, 2]]), (30, [[10, 5, 2]])):
        plan = plan_packing(examples, shared_prefix=True, prefix_budget_tokens=prefixes, **budgets)
        assert [[len(p) for p in one.prefixes] for one in plan.shared] == together
        for one in plan.shared:
            assert sum(one.rollouts) == sum(map(len, one.microbatches))
            for batch in one.microbatches:
                places = [one.place(e) for e in batch]
                assert places == sorted(places)
                assert [one.prefixes[p] for p in places] == [e.prompt[:-1] for e in batch]


BAD_GROUPS = [
    ([], "no group"),
    ([SampledGroup([], GROUPS[0].rollouts, [0.0])], "prompt is empty"),
    ([SampledGroup([1], [], [0.0])], "no rollout"),
    ([SampledGroup([1], [SampledRollout([], [], [], 0.0)], [0.0])], "response is empty"),
    ([SampledGroup([1], [SampledRollout([1, 2], [-1.0], [0, 0], 0.0)], [0.0])], "one of each"),
    ([SampledGroup([1], [SampledRollout([1, 2], [-1.0] * 2, [1, 0], 0.0)], [0.0])], "not fall"),
    ([SampledGroup([1], [SampledRollout([1], [-1.0], [5], 0.0)], [0.0])], "newer"),
    ([SampledGroup([1], [SampledRollout([1], [-1.0], [0], math.nan)], [0.0])], "reward"),
    ([SampledGroup([999], [SampledRollout([1], [-1.0], [0], 1.0)], [0.0])], "vocabulary"),
]


@pytest.mark.parametrize(("groups", "words"), BAD_GROUPS, ids=[w for _, w in BAD_GROUPS])
def test_refuses_what_cannot_have_been_sampled(groups, words):
    trainer = Trainer(build("qwen3", torch.float32))
    with pytest.raises(ValueError, match=words):
        trainer.step(groups, shared_prefix=False, version=0)


def test_refuses_a_rollout_beyond_the_models_context():
    trainer = Trainer(build("qwen3", torch.float32))
    with pytest.raises(ScenarioError, match="context of 128 tokens"):
        trainer.step(make_groups([(120, [9, 9])]), shared_prefix=True, version=0)


def test_importance_weights_need_the_trainers_own_log_probabilities():
    capped = dataclasses.replace(GRPO, importance_cap=2.0)
    with pytest.raises(ScenarioError, match="old_log_probs"):
        TrainerConfig(loss=capped)
    assert TrainerConfig(loss=capped, old_log_probs="trainer").loss.importance_cap == 2.0


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("autocast", [False, True])
def test_on_cuda(autocast):
    model = build("qwen3", torch.float32).to("cuda")
    trainer = Trainer(model, TrainerConfig(autocast=autocast, checkpoint="all"))
    for shared in (False, True):
        metrics = trainer.step(GROUPS, shared_prefix=shared, version=0)
        assert metrics.updates == 1
        assert metrics.peak_bytes is not None


@pytest.mark.parametrize("offloads", [False, True])
def test_a_reference_holds_the_weights_where_the_run_began(offloads):
    """Without rewards to learn from, steps lead towards it; measured alone, they lead nowhere."""
    groups = make_groups([(5, [4, 6]), (3, [5])])
    for group in groups:
        for rollout in group.rollouts:
            object.__setattr__(rollout, "reward", 1.0)
        object.__setattr__(group, "baseline_rewards", [1.0] * len(group.rollouts))
    found = {}
    for coefficient in (0.0, 1.0):
        loss = dataclasses.replace(GRPO, kl_coefficient=coefficient)
        config = TrainerConfig(loss=loss, learning_rate=3e-3, max_grad_norm=None)
        model, other = build("qwen3"), build("qwen3", seed=1)
        visits = "cpu" if offloads else None
        trainer = Trainer(model, config, reference=of_its_own(other, config, visits=visits))
        steps = [trainer.step(groups, shared_prefix=True, version=0) for _ in range(8)]
        found[coefficient] = [step.reference_kl for step in steps]
        again = build("qwen3", seed=1)
        same = Trainer(again, config, reference=of_its_own(other, config))
        assert same.step(groups, shared_prefix=False, version=0).reference_kl < 1e-20
    assert len({round(kl, 12) for kl in found[0.0]}) == 1
    assert found[1.0][-1] < 0.7 * found[1.0][0]


@pytest.mark.parametrize("kind", ["llama", "qwen3_moe"])
def test_the_operations_of_an_update_are_counted(kind):
    """Beside torch's own counter of matrix products, in an update of one sequence; it counts
    attention without its mask, and all logits."""
    from torch.utils.flop_counter import FlopCounterMode

    model = build(kind, torch.float32, attn_implementation="eager")
    trainer = Trainer(model, TrainerConfig(learning_rate=1e-3))
    prompt, response = 30, 50
    groups = make_groups([(prompt, [response])])
    with FlopCounterMode(display=False) as counter:
        metrics = trainer.step(groups, shared_prefix=False, version=0)
    tokens = prompt + response - 1
    ours = trainer._flops.of(tokens, tokens * tokens, response)
    assert ours == pytest.approx(counter.get_total_flops(), rel=0.02)
    found = trainer._flops.of(tokens, tokens * (tokens + 1) // 2, response)
    update_s = metrics.total_s - metrics.log_prob_s
    assert metrics.flop_per_s_per_rank == pytest.approx(found / update_s)
    assert metrics.mfu is None


@pytest.mark.parametrize("kind", ["mixtral", "qwen3_moe", "llama"])
def test_weights_are_named_as_on_the_hub_for_engines_that_read_it_so(tmp_path, kind):
    """All at once, and one after another as several ranks gather them."""
    model = build(kind, torch.float32)
    model.save_pretrained(tmp_path)
    (file,) = tmp_path.glob("*.safetensors")
    truth = load_file(file)
    trainer = Trainer(model, TrainerConfig(), hub_names=True)
    gathered = Gathered(published(model), torch.float32, trainer._convert)
    for found in (trainer.weights(), dict(gathered), gathered.described):
        assert found.keys() == truth.keys()
        assert all(found[name].shape == tensor.shape for name, tensor in truth.items())
        if found is not gathered.described:
            assert all(torch.equal(found[name], tensor) for name, tensor in truth.items())
