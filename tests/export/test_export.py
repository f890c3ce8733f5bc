"""``rollcast export``: what is written for every policy, and what is refused by name."""

import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from rollcast.engine.export.planned import planned
from rollcast.engine.export.write import export
from rollcast.simulator.check.question import question as from_launch
from rollcast.simulator.core.plan import Batch, Launch, StepPlan
from rollcast.simulator.errors import RunError, ScenarioError
from rollcast.simulator.launches.draft import Asked
from rollcast.simulator.launches.parts import given as parts_given
from rollcast.simulator.launches.read import read_launch
from rollcast.simulator.policies import POLICIES
from rollcast.simulator.scenario.ledger import roofline_of
from rollcast.simulator.stacks.exported import PLAN_FILE, read_exported
from rollcast.simulator.stacks.exporting import MODEL
from rollcast.simulator.stacks.slime.limits import LIMITS as SLIME
from rollcast.simulator.stacks.stack import exporters
from rollcast.simulator.stacks.verl.limits import LIMITS as VERL
from tests.conftest import Cli
from tests.export.scenarios import scenario
from tests.refusals import refused
from tests.tables import cases

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs" / "export.md").read_text("utf-8")

STACKS = tuple(exporters())

# What becomes of each policy at its defaults: a hook, settings alone, or the decision refused.
TABLE = {
    "sync": ("settings", "settings"),
    "april": ("hook", "hook"),
    "sagc": ("hook", "batch.group_size"),
    "pods": ("hook", "hook"),
    "prefix_reuse": ("layout", "layout"),
    "dynamic_sampling": ("hook", "stop"),
    "tail_batching": ("launch.rollouts", "surplus"),
    "one_step_off": ("settings", "settings"),
    "fully_async": ("launch.run_ahead", "settings"),
    "pipeline_rl": ("interrupt", "launch.run_ahead"),
    "partial_rollout": ("hook", "launch.refill"),
    "colocate_async": ("hook", "settings"),
    "token_budget": ("hook", "budget_tokens"),
    "sorted_rl": ("hook", "surplus"),
    "seer": ("hook", "dispatch.order"),
    "rhyme_rl": ("dispatch.predictor", "dispatch.predictor"),
    "longest_first": ("dispatch.placement", "dispatch.placement"),
    "difficulty": ("prompts.skip", "prompts.skip"),
    "streaming": ("stream_groups", "stream_groups"),
}
GIVEN = {"pods": "pods(keep=2)"}
APART = ("one_step_off", "fully_async", "pipeline_rl", "streaming")


def placed(name: str) -> dict[str, object]:
    return {"cluster": {"placement": "disaggregated"}} if name in APART else {}


def test_the_table_has_every_policy() -> None:
    names = {kind.NAME for kind in POLICIES.values()}
    assert set(TABLE) == {"sync", *names}


@pytest.mark.parametrize("stack", [*STACKS])
@pytest.mark.parametrize("name", [*TABLE])
def test_every_policy_is_exported_or_refused_by_name(name: str, stack: str, tmp_path: Path) -> None:
    wanted = TABLE[name][[*STACKS].index(stack)]
    checked, out = scenario(GIVEN.get(name, name), **placed(name)), tmp_path / "out"
    if wanted in ("hook", "settings"):
        names = export(checked, stack, out)
        assert sorted(path.name for path in out.iterdir()) == sorted(names)
        assert (f"rollcast_{stack}.py" in names) == (wanted == "hook")
        return
    with pytest.raises(ScenarioError) as refused:
        export(checked, stack, out)
    assert refused.value.field == f"policy.{name}"
    assert refused.value.message.startswith(f"decides {wanted}, which ")
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize("name", [*TABLE])
def test_the_page_says_the_same(name: str) -> None:
    [row] = re.findall(rf"^\| `{name}` \| (.*?) \| (.*?) \|$", PAGE, re.MULTILINE)
    for said, wanted in zip(row, TABLE[name], strict=True):
        if wanted == "hook":
            assert said in ("function", "sampler")
        elif wanted == "settings":
            assert said.startswith("settings")
        else:
            assert said == f"no: `{wanted}`"


@pytest.mark.parametrize("stack", [*STACKS])
@pytest.mark.parametrize("policy", ["april+dynamic_sampling", "sync"])
def test_what_is_written_is_sound(policy: str, stack: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    export(scenario(policy), stack, out)
    bash = shutil.which("bash")
    assert bash
    script = 'MODEL=/m; source ./args.sh; printf "%s\\n" "${ROLLCAST_ARGS[@]}"'
    ran = subprocess.run(
        [bash, "-euc", script], cwd=out, capture_output=True, text=True, check=True, timeout=60
    )
    assert "${" not in ran.stdout.replace("${trainer.default_local_dir}", "")
    for path in out.iterdir():
        text = path.read_text("utf-8")
        assert str(ROOT) not in text
        assert str(tmp_path) not in text
        assert str(Path.home()) not in text
        assert sys.prefix not in text
    assert "nobody has run this folder" in (out / "README.md").read_text("utf-8")


@pytest.mark.parametrize("stack", [*STACKS])
def test_a_hook_imports_where_its_stack_is_absent(stack: str, tmp_path: Path) -> None:
    export(scenario("april"), stack, tmp_path / "out")
    source = tmp_path / "out" / f"rollcast_{stack}.py"
    compile(source.read_text("utf-8"), source.name, "exec")
    for decoy in ("engine", "simulator"):
        (source.parent / f"{decoy}.py").write_text("raise ImportError('another one')")
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import importlib\n"
        f"found = importlib.import_module('rollcast_{stack}')\n"
        "assert not hasattr(found, 'Nothing')\n"
        "heavy = {'torch', 'vllm', 'slime', 'verl', 'transformers', 'pandas', 'matplotlib'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    subprocess.run(
        [sys.executable, "-c", code, str(source.parent)],
        check=True,
        timeout=60,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


def test_hooks_are_made_when_they_are_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.export.fake_slime import DataSource, FakeSlime
    from tests.export.fake_verl import FakeVerl, ReplayBuffer

    made = {}
    checked = scenario("april")
    slime = FakeSlime(checked.workload)
    slime.install(monkeypatch)
    slime.close()
    FakeVerl(checked.workload, 4, 4, True).install(monkeypatch)
    for stack, name in (("slime", "DataSource"), ("verl", "Sampler")):
        export(checked, stack, tmp_path / stack)
        path = tmp_path / stack / f"rollcast_{stack}.py"
        spec = importlib.util.spec_from_file_location(f"hook_{stack}", path)
        assert spec
        assert spec.loader
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        made[stack] = getattr(module, name)
        assert getattr(module, name) is made[stack]  # the same class each time
    assert issubclass(made["slime"], DataSource)
    assert issubclass(made["verl"], ReplayBuffer)


def test_an_exported_plan_is_the_scenarios() -> None:
    environment = {"turn_s": 0.1, "failed": "restart"}
    checked = scenario("april", environment=environment, workload={"prompts": 50, **TURNS})
    assert planned(checked).exported.base == checked.plan


def arguments(policy: str, stack: str, out: Path, **given: object) -> list[str]:
    export(scenario(policy, **given), stack, out)
    found = (out / "args.sh").read_text("utf-8")
    return [line.strip() for line in found.split("(\n", 1)[1].splitlines()[:-1]]


TURNS = {
    "turns": {
        **{"family": "lognormal", "median": 3, "between_sd": 0.3, "within_sd": 0.3},
        **{"max_turns": 6, "observation_tokens": 20},
    }
}
BIG = {
    "cluster": {
        "placement": "disaggregated",
        "replicas": 8,
        "tensor_parallel": 4,
        "trainer_gpus": 16,
    },
    "engine": {"max_seqs": 100, "max_batched_tokens": 4096, "prefix_caching": False},
    "model": "qwen3-8b",
    "gpu": "h100-sxm",
    "steps": 7,
    "seed": 11,
}
TRAINER = {
    "roofline": {"trainer": {"tensor_parallel": 2, "microbatch_tokens": 20000, "minibatches": 2}}
}

THREE = {
    **{"model": "qwen3-8b", "gpu": "h100-sxm"},
    "cost": {"roofline": {"trainer": {"minibatches": 3}}},
}


def test_slime_gets_the_scenarios_figures(tmp_path: Path) -> None:
    given = arguments("one_step_off", "slime", tmp_path / "out", **BIG, cost=TRAINER)
    assert set(given) >= {
        "--num-rollout 7",
        "--rollout-batch-size 4",
        "--n-samples-per-prompt 4",
        "--global-batch-size 8",  # two optimiser steps of 16 rollouts
        "--rollout-max-response-len 60",
        "--rollout-seed 11",
        "--actor-num-nodes 2",
        "--actor-num-gpus-per-node 8",
        "--rollout-num-gpus 32",
        "--rollout-num-gpus-per-engine 4",
        "--sglang-server-concurrency 100",
        "--sglang-max-running-requests 100",
        "--sglang-chunked-prefill-size 4096",
        "--sglang-disable-radix-cache",
        "--tensor-model-parallel-size 2",
        "--use-dynamic-batch-size",
        "--max-tokens-per-gpu 20000",
        "--update-weights-interval 1",
    }
    assert "train_async.py" in (tmp_path / "out" / "README.md").read_text("utf-8")


def test_slimes_own_partial_rollout_needs_no_function(tmp_path: Path) -> None:
    policy = "april(over_sampling=1.5, surplus=drop, mask_off_policy=true)+dynamic_sampling"
    given = arguments(policy, "slime", tmp_path / "out")
    assert given[-4:] == [
        "--partial-rollout",
        "--over-sampling-batch-size 6",
        "--dynamic-sampling-filter-path "
        "slime.rollout.filter_hub.dynamic_sampling_filters.check_reward_nonzero_std",
        "--mask-offpolicy-in-partial-rollout",
    ]


def test_weights_that_wait_need_a_trainer_that_overlaps() -> None:
    plan = StepPlan(Batch(4, 4), sync_every=2)
    with pytest.raises(RunError, match="step 0 plans sync_every, which slime cannot carry out"):
        SLIME.check_step(plan)
    SLIME.check_step(replace(plan, launch=Launch(run_ahead=1)))
    with pytest.raises(RunError, match="plans sync_every, which verl's V1 sampler"):
        VERL.check_step(plan)


def test_slime_is_told_of_groups_of_changing_size(tmp_path: Path) -> None:
    plain = arguments("april", "slime", tmp_path / "plain")
    assert plain[-3:] == [
        "--rollout-function-path rollcast_slime.generate_rollout",
        "--data-source-path rollcast_slime.DataSource",
        "--partial-rollout",
    ]
    sized = arguments("sagc(candidates=[2, 4], first=2)", "slime", tmp_path / "sized")
    hook = "--custom-reward-post-process-path rollcast_slime.post_process_rewards"
    assert hook in sized
    assert hook not in plain
    assert {"--rollout-batch-size 8", "--n-samples-per-prompt 2"} <= set(sized)


def test_slime_trains_on_what_is_selected(tmp_path: Path) -> None:
    given = arguments("pods(keep=2)", "slime", tmp_path / "out")
    assert {"--n-samples-per-prompt 2", "--global-batch-size 8"} <= set(given)
    assert "samples 4 of each" in (tmp_path / "out" / "README.md").read_text("utf-8")


def test_verl_gets_the_scenarios_figures(tmp_path: Path) -> None:
    given = arguments(
        "fully_async(max_staleness=2, sync_every=2)", "verl", tmp_path / "out", **BIG, cost=TRAINER
    )
    assert set(given) >= {
        "data.train_batch_size=0",
        "data.max_prompt_length=3",
        "data.max_response_length=60",
        "actor_rollout_ref.rollout.n=4",
        "actor_rollout_ref.actor.ppo_mini_batch_size=2",
        "actor_rollout_ref.rollout.tensor_model_parallel_size=4",
        "actor_rollout_ref.rollout.max_num_seqs=100",
        "actor_rollout_ref.rollout.max_num_batched_tokens=4096",
        "actor_rollout_ref.rollout.enable_prefix_caching=False",
        "trainer.total_training_steps=7",
        "trainer.nnodes=2",
        "trainer.n_gpus_per_node=8",
        "rollout.nnodes=4",
        "rollout.n_gpus_per_node=8",
        "actor_rollout_ref.actor.megatron.tensor_model_parallel_size=2",
        "actor_rollout_ref.actor.use_dynamic_bsz=True",
        "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=20000",
        # eta = (1 + s) k - 1, and a version of verl's is a sync
        "async_training.staleness_threshold=0.5",
        "async_training.trigger_parameter_sync_step=2",
        "async_training.require_batches=2",  # of 2 groups: the batch of 4
        "rollout.total_rollout_steps=28",
        "async_training.concurrent_samples_per_replica=1",  # 4 prompts on 8 replicas
        "rollout.n=4",
    }
    assert "model_engine=megatron" not in given
    assert "--config-name=fully_async_ppo_megatron_trainer" in (
        tmp_path / "out" / "README.md"
    ).read_text("utf-8")
    assert "model_engine=megatron" in arguments(
        "colocate_async",
        "verl",
        tmp_path / "v1",
        **{**BIG, "cluster": {"replicas": 2}, "cost": TRAINER},
    )


def test_verl_is_told_the_size_of_passes(tmp_path: Path) -> None:
    """It starts without none, and takes no rollout that is longer than a pass."""
    tokens = "actor_rollout_ref.actor.ppo_max_token_len_per_gpu"
    longer, longest = ({"workload": {"max_new_tokens": cap}} for cap in (40_000, 80_000))
    split = {"cost": {"roofline": {"trainer": {"sequence_parallel": 4}}}}
    split |= {**MEMORY, "cluster": COLOCATED}
    cases = (({}, 16384), (longer, 40_003), (longer | split, 16384), (longest | split, 20_001))
    for number, (given, size) in enumerate(cases):
        said = arguments("april", "verl", tmp_path / str(number), **given)
        assert {"actor_rollout_ref.actor.use_dynamic_bsz=True", f"{tokens}={size}"} <= set(said)
    padded = {"trainer": {"microbatch_rollouts": 2, "batching": "padded"}}
    rows = {**MEMORY, "cluster": COLOCATED, "cost": {"roofline": padded}}
    said = arguments("april", "verl", tmp_path / "rows", **rows)
    assert "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=2" in said
    assert not any(line.startswith(tokens) for line in said)


def test_verls_recipes_find_the_configuration_that_they_build_on(tmp_path: Path) -> None:
    search = "hydra.searchpath=[pkg://verl.trainer.config]"
    assert search in arguments("one_step_off", "verl", tmp_path / "one")
    assert search in arguments("fully_async", "verl", tmp_path / "fully", **BIG, cost=TRAINER)
    assert search not in arguments("colocate_async", "verl", tmp_path / "v1")


def test_verl_has_colocated_asynchrony_of_its_own(tmp_path: Path) -> None:
    policy = "colocate_async(warmup=2, max_staleness=3, exceeded=wait)"
    given = arguments(policy, "verl", tmp_path / "own")
    assert set(given) >= {
        "trainer.v1.trainer_mode=colocate_async",
        "trainer.v1.colocate_async.num_warmup_batches=2",
        "trainer.v1.sampler.max_off_policy_threshold=4",
        "trainer.v1.sampler.max_off_policy_strategy=wait",
    }
    unbounded = arguments("colocate_async(max_staleness=null)", "verl", tmp_path / "unbounded")
    assert "trainer.v1.sampler.max_off_policy_threshold=1000000" in unbounded


def test_verls_sampler_gets_its_mode_and_its_refills(tmp_path: Path) -> None:
    waits = arguments("dynamic_sampling(refill_when=drained)", "verl", tmp_path / "waits")
    assert {"trainer.v1.trainer_mode=sync", "data.gen_batch_size=1"} <= set(waits)
    stops = arguments("april(over_sampling=2.5)+pods(keep=2)", "verl", tmp_path / "stops")
    assert set(stops) >= {
        "trainer.v1.trainer_mode=colocate_async",
        "trainer.v1.colocate_async.num_warmup_batches=1",
        "data.gen_batch_size=1",
        "actor_rollout_ref.actor.ppo_mini_batch_size=2",  # times n = 4 rollouts: the 8 kept
    }
    # Without a refill, too: where a prompt fails, the sampler has verl launch a single one.
    assert "data.gen_batch_size=1" in arguments("pods(keep=2)", "verl", tmp_path / "plain")


TRAINS = "cluster.trainer"


def cluster(**keys: object) -> dict[str, object]:
    return {"cluster": keys}


@pytest.mark.parametrize(
    ("policy", "stack", "given", "field", "said"),
    [
        ("april(surplus=train)", "slime", {}, "policy.april", "decides surplus"),
        ("one_step_off(steps=2)", "slime", {}, "policy.one_step_off", "one batch ahead"),
        ("pods(keep=2)+sagc(candidates=[2, 4], first=4)", "slime", {}, "policy", "changing size"),
        ("april(mask_off_policy=true)", "verl", {}, "policy.april", "mask_off_policy"),
        ("pods(keep=2, advantages=before_selection)", "verl", {}, "policy.pods", "advantages"),
        ("one_step_off+pods(keep=2)", "verl", {}, "policy.one_step_off", "as settings"),
        ("pods(keep=3)", "verl", {"workload": {"batch_groups": 3}}, "policy", "whole groups of 4"),
        ("colocate_async(warmup=1.5)", "verl", {}, "policy.colocate_async", "max_versions"),
        ("april", "verl", cluster(placement="disaggregated"), "cluster.placement", "be colocated"),
        ("april", "slime", cluster(routing="group_affinity"), "cluster.routing", "router"),
        ("april", "slime", cluster(replicas=4, trainer_gpus=2), f"{TRAINS}_gpus", "all 4 GPUs"),
        ("april", "verl", cluster(replicas=12), f"{TRAINS}_gpus", "nodes of 8"),
        ("april", "trl", {}, "--to", "slime"),
        *(
            ("april", stack, THREE, "cost.roofline.trainer.minibatches", "3 equal minibatches")
            for stack in STACKS
        ),
    ],
)
def test_what_cannot_be_is_refused(
    policy: str, stack: str, given: dict[str, object], field: str, said: str, tmp_path: Path
) -> None:
    with pytest.raises(ScenarioError) as refused:
        export(scenario(policy, **given), stack, tmp_path / "out")
    assert refused.value.field == field
    assert said in refused.value.message
    assert [*tmp_path.iterdir()] == []


def test_a_folder_in_use_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(ScenarioError, match="is not empty; give another folder"):
        export(scenario("april"), "slime", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
    with pytest.raises(ScenarioError, match="is a file"):
        export(scenario("april"), "slime", tmp_path / "mine.txt")


def test_the_command(cli: Cli, tmp_path: Path) -> None:
    out = tmp_path / "out"
    code, said, told = cli(
        "export", ROOT / "examples" / "april.yaml", "--to", "slime", "--out", out
    )
    assert (code, said) == (0, "")
    assert told.strip() == f"wrote {out}/: plan.json, rollcast_slime.py, args.sh, README.md"


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--to", "trl"], "--to: "),
        (["--to", "verl", "--policy", "sagc"], "(from --policy)"),
        (["--to", "verl", "--policy", "apri"], "unknown policy"),
        (["--to", "slime", "--set", "policy=prefix_reuse"], "policy.prefix_reuse: decides layout"),
        (["--to", "slime", "--set", "steps=0"], "steps"),
    ],
)
def test_mistakes_are_one_sentence(more: list[str], said: str, cli: Cli, tmp_path: Path) -> None:
    out = tmp_path / "out"
    told = refused(cli("export", ROOT / "examples" / "april.yaml", "--out", out, *more))
    assert said in told
    assert not out.exists()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"policy": "apri"}, None),
        ({"batch_groups": 0}, "plan.batch_groups"),
        ({"max_seqs": None}, "plan.max_seqs"),
        ({"more": 1}, "plan.more"),
    ],
)
def test_a_plan_that_was_damaged_is_named(
    change: dict[str, object], said: str | None, tmp_path: Path
) -> None:
    export(scenario("april"), "slime", tmp_path / "out")
    path = tmp_path / "out" / PLAN_FILE
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(ScenarioError, match=said or "unknown policy"):
        read_exported(path).chain()
    path.write_text("[")
    with pytest.raises(ScenarioError, match="cannot read"):
        read_exported(path)


def test_hooks_of_earlier_exports_are_found() -> None:
    from rollcast.engine.stacks import slime, verl
    from rollcast.simulator.stacks.slime.hooks import Adapter
    from rollcast.simulator.stacks.verl.hooks import make_sampler

    assert (slime.Adapter, verl.make_sampler) == (Adapter, make_sampler)


def test_the_whole_run_is_exported_and_not_what_was_simulated() -> None:
    assert planned(scenario(steps=8)).steps == 8
    for run, steps in (
        ({"steps": 500}, 500),
        ({"prompts": 500, "epochs": 3}, 375),  # of four a batch
        ({"trained_rollouts": "4k"}, 250),  # of sixteen
    ):
        assert planned(scenario(steps=8, plan={"run": run})).steps == steps
    halved = scenario("pods(keep=2)", plan={"run": {"trained_rollouts": 4000}})
    assert planned(halved).steps == 500
    filtered = scenario("dynamic_sampling", plan={"run": {"prompts": 500}})
    with pytest.raises(ScenarioError, match="since the policy rejects groups") as caught:
        planned(filtered)
    assert caught.value.field == "plan.run.prompts"


MEMORY = {"model": "qwen3-0.6b", "gpu": "h100-sxm", "engine": {"kv_tokens": None}}
COLOCATED = {"placement": "colocated", "replicas": 8, "trainer_gpus": 8}


@pytest.mark.parametrize(
    ("stack", "roofline", "args"), cases(Path(__file__).parent / "memory.yaml", "roofline", "args")
)
def test_what_the_fit_in_memory_rests_on_is_exported(
    stack: str, roofline: dict[str, object], args: list[str], tmp_path: Path
) -> None:
    """In the stack's words; and what rollcast reads of these is the scenario's again."""
    priced = scenario(**MEMORY, cluster=COLOCATED, cost={"roofline": roofline})
    out = tmp_path / "out"
    export(priced, stack, out)
    lines = (out / "args.sh").read_text("utf-8").splitlines()
    given = [line.strip() for line in lines if line.startswith("  ")]
    assert set(given) >= set(args)
    assert "fits in memory rests on the arguments" in (out / "README.md").read_text("utf-8")
    entry = {"verl": "python3 -m verl.trainer.main_ppo", "slime": "python3 train.py"}[stack]
    text = " ".join([entry, *given]).replace(MODEL.strip('"'), "Qwen/Qwen3-0.6B")
    words = shlex.split(text)
    launch = read_launch(None, words, stack)
    asked = Asked(mean_tokens=20.0, prompt_tokens=3, parts=parts_given("qwen3-0.6b", "h100-sxm"))
    again = from_launch(launch, asked).scenario.cost
    ours, theirs = roofline_of(priced.cost), roofline_of(again)
    for name in ("offload_optimizer", "kv_memory_utilization"):
        assert getattr(theirs, name) == getattr(ours, name), name
    for name in _MEMORY_OF_THE_TRAINER:
        if getattr(ours.trainer_of, name) is None:
            continue  # the stack's own
        assert getattr(theirs.trainer_of, name) == getattr(ours.trainer_of, name), name
    shared = [one.trainer_of.tensor_sequence_parallel for one in (ours, theirs)]
    assert ours.trainer_of.tensor_parallel == 1 or shared[0] == shared[1]


_MEMORY_OF_THE_TRAINER = (
    *("recompute", "microbatch_rollouts", "microbatch_tokens"),
    *("optimizer_on_host", "states_on_host", "sequence_parallel"),
    *("offload_activations", "tensor_parallel", "weights"),
)


def test_what_a_stack_cannot_be_told_is_told_to_the_reader(tmp_path: Path) -> None:
    roofline = {"offload_optimizer": False, "trainer": {"offload_activations": True}}
    priced = scenario(**MEMORY, cluster=COLOCATED, cost={"roofline": roofline})
    export(priced, "slime", tmp_path / "slime")
    text = (tmp_path / "slime" / "README.md").read_text("utf-8")
    assert "cost.roofline.trainer.offload_activations: true" in text
    assert "cost.roofline.offload_optimizer: false" in text
    both = {"trainer": {"tensor_parallel": 2, "sequence_parallel": 2, "weights": "full"}}
    priced = scenario(**MEMORY, cluster=COLOCATED, cost={"roofline": both})
    for stack in STACKS:  # Megatron knows no Ulysses
        export(priced, stack, tmp_path / f"both_{stack}")
        text = (tmp_path / f"both_{stack}" / "README.md").read_text("utf-8")
        assert "cost.roofline.trainer.sequence_parallel: 2" in text
    adapters = {"trainer": {"weights": "lora"}}  # of a fork of slime's alone
    priced = scenario(**MEMORY, cluster=COLOCATED, cost={"roofline": adapters})
    export(priced, "slime", tmp_path / "lora")
    assert "cost.roofline.trainer.weights: lora" in (tmp_path / "lora/README.md").read_text("utf-8")
    assert "lora" not in (tmp_path / "lora/args.sh").read_text("utf-8")
    export(scenario(), "slime", tmp_path / "linear")
    assert "memory" not in (tmp_path / "linear" / "README.md").read_text("utf-8")
