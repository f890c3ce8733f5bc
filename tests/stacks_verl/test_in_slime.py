"""Exported plans inside slime's own rollout code, from a checkout that ROLLCAST_SLIME names.

Real: slime's loading of functions, its data source and its saving, sampling, rewards, semaphore and
abort, and its HTTP client. Replaced: SGLang and its router (`fake_sglang`), the manager that calls
the rollout function, and training. What parses slime's arguments imports SGLang and Megatron, so
the exported arguments are set by hand here.
"""

import importlib
import json
import os
import re
import subprocess
import sys
from argparse import Namespace
from collections import Counter
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from benchmarks.in_verl.run import write_model
from benchmarks.runner import rollcast
from rollcast.engine.export.write import export
from rollcast.engine.tasks.collatz import CollatzTask
from tests.export.scenarios import TRAINERS, priced
from tests.stacks_verl.fake_sglang import FakeSGLang

HERE = Path(__file__).parent
CHECKOUT = os.environ.get("ROLLCAST_SLIME")
GROUPS, SIZE, CAP, STEPS = 4, 4, 256, 4
POLICIES = (
    "april",
    "april(surplus=drop)",
    "pods(keep=2)",
    "dynamic_sampling",
    "april+pods(keep=2)",
    "partial_rollout",
    "token_budget(tokens=30)",
)

# slime's HTTP client lives until the process ends.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

if not CHECKOUT:
    pytest.skip("ROLLCAST_SLIME names no checkout of slime", allow_module_level=True)


@pytest.fixture(scope="module")
def slime(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[FakeSGLang, Path]]:
    """slime on the path, an engine's stand-in, and a folder with model and prompts."""
    folder = tmp_path_factory.mktemp("slime")
    write_model(folder / "model")
    task = CollatzTask()
    prompts = [task.prompt(group, 0) for group in range(300)]
    lines = [json.dumps({"text": p.text, "label": p.answer}) + "\n" for p in prompts]
    (folder / "prompts.jsonl").write_text("".join(lines))
    sys.path[:0] = [str(CHECKOUT), str(HERE)]
    server = FakeSGLang()
    yield server, folder
    server.close()


def exported(policy: str, out: Path) -> dict[str, str]:
    """The export's arguments."""
    scenario = HERE / "scenario.yaml"
    rollcast("export", scenario, "--policy", policy, "--to", "slime", "--out", out)
    return in_shell(out)


def in_shell(out: Path) -> dict[str, str]:
    """An export's arguments, as a shell reads them."""
    script = 'MODEL=model; source "$0"; printf "%s\\n" "${ROLLCAST_ARGS[@]}"'
    said = subprocess.run(
        ["bash", "-c", script, str(out / "args.sh")], capture_output=True, text=True, check=True
    )
    words = said.stdout.split()
    flags = [n for n, word in enumerate(words) if word.startswith("--")]
    ends = [*flags[1:], len(words)]
    return {words[n]: " ".join(words[n + 1 : end]) for n, end in zip(flags, ends, strict=True)}


def test_slimes_parsers_know_every_argument(tmp_path: Path) -> None:
    """Megatron's takes what it does not know for nothing: an argument that no parser has would be
    lost in silence. slime's sources and scripts name its own, and most of Megatron's; SGLang's have
    its prefix."""
    suffixes = (".py", ".sh", ".md")
    texts = [
        path.read_text("utf-8") for path in Path(CHECKOUT).rglob("*") if path.suffix in suffixes
    ]
    known = {flag for text in texts for flag in re.findall(r"--[a-z][\w-]+", text)}
    known.add("--num-virtual-stages-per-pipeline-rank")  # of Megatron's, which no script there uses
    for number, (policy, roofline) in enumerate(product(POLICIES[:2], TRAINERS)):
        out = tmp_path / str(number)
        export(priced(policy, roofline), "slime", out)
        said = in_shell(out)
        unknown = {flag for flag in said if not flag.startswith("--sglang-")} - known
        assert not unknown


def arguments(said: dict[str, str], server: FakeSGLang, folder: Path, save: Path) -> Namespace:
    """What slime's parser would make of them, as far as its rollout code looks."""
    own = "slime.rollout.sglang_rollout.generate_rollout"
    source = "slime.rollout.data_source.RolloutDataSourceWithBuffer"
    batch = int(said["--rollout-batch-size"])
    values: dict[str, Any] = {
        "hf_checkpoint": str(folder / "model"),
        "prompt_data": str(folder / "prompts.jsonl"),
        "input_key": "text",
        "label_key": "label",
        "metadata_key": "metadata",
        "rollout_function_path": said.get("--rollout-function-path", own),
        "data_source_path": said.get("--data-source-path", source),
        "rollout_batch_size": batch,
        "over_sampling_batch_size": int(said.get("--over-sampling-batch-size", batch)),
        "n_samples_per_prompt": int(said["--n-samples-per-prompt"]),
        "rollout_max_response_len": int(said["--rollout-max-response-len"]),
        "partial_rollout": "--partial-rollout" in said,
        "mask_offpolicy_in_partial_rollout": "--mask-offpolicy-in-partial-rollout" in said,
        "sglang_server_concurrency": int(said["--sglang-server-concurrency"]),
        "sglang_router_ip": "127.0.0.1",
        "sglang_router_port": server.port,
        "custom_rm_path": "rm_for_slime.reward",
        "save": str(save),
        "load": str(save),
        "rollout_num_engines": 1,
        "rollout_temperature": 1.0,
        "rollout_top_p": 1.0,
        "rollout_top_k": -1,
        "rollout_seed": 0,
        "rollout_global_dataset": True,
        "rollout_skip_special_tokens": False,
        "advantage_estimator": "grpo",
        "rewards_normalization": True,
        "grpo_std_normalization": True,
    }
    return Defaults(**values)


class Defaults(Namespace):
    """Every other argument is not given."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return None


@pytest.mark.timeout(600)
@pytest.mark.parametrize("policy", POLICIES)
def test_decides_as_planned_inside_slime(
    policy: str, slime: tuple[FakeSGLang, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from slime.rollout.base_types import call_rollout_fn
    from slime.rollout.sglang_rollout import GenerateState
    from slime.utils.http_utils import init_http_client
    from slime.utils.misc import SingletonMeta, load_function

    server, folder = slime
    said = exported(policy, tmp_path / "export")
    monkeypatch.syspath_prepend(tmp_path / "export")
    sys.modules.pop("rollcast_slime", None)
    importlib.invalidate_caches()
    load_function.cache_clear()
    SingletonMeta._instances.pop(GenerateState, None)  # one run a process, for slime
    args = arguments(said, server, folder, tmp_path / "save")
    init_http_client(args)
    source = load_function(args.data_source_path)(args)
    function = load_function(args.rollout_function_path)
    trained: Counter[int] = Counter()
    aborts, resumed, kept = server.aborts, 0.0, 2 if "pods" in policy else SIZE
    for rollout_id in range(STEPS):
        made = call_rollout_fn(function, args, rollout_id, source, evaluation=False)
        assert [len(group) for group in made.samples] == [kept] * GROUPS
        for group in made.samples:
            assert len({tuple(s.tokens[: -s.response_length]) for s in group}) == 1
            for sample in group:
                assert sample.status.value in ("completed", "truncated")
                assert sample.reward == float(sample.response_length > 25)
                assert len(sample.loss_mask) == sample.response_length <= CAP
                assert len(sample.rollout_log_probs) == sample.response_length
            trained.update(sample.index for sample in group)
            if "dynamic" in policy:
                assert {sample.reward for sample in group} == {0.0, 1.0}
        if made.metrics and "rollcast/resumed_tokens" in made.metrics:
            lengths = sum(s.response_length for group in made.samples for s in group)
            assert made.metrics["rollcast/trained_tokens"] == lengths
            resumed += made.metrics["rollcast/resumed_tokens"]
        source.save(rollout_id)
    assert max(trained.values()) == 1
    if policy in ("april", "april+pods(keep=2)", "partial_rollout"):
        assert server.aborts > aborts
        assert resumed > 0
    again = load_function(args.data_source_path)(args)
    again.load(STEPS - 1)
    assert again.sample_offset == source.sample_offset
