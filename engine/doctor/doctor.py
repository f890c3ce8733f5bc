"""The whole examination: packages here, then each stage in a process of its own, so that what ends
one of them (a crash, no memory, a hang) is a line like any other."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from rollcast.engine.doctor import child
from rollcast.engine.doctor.findings import Finding
from rollcast.engine.doctor.packages import engines_ready, packages
from rollcast.engine.errors import EngineError
from rollcast.simulator.errors import RollcastError
from rollcast.simulator.scenario.file import RawScenario

LIMIT_S = 600.0
"""Of a stage: a large model may have to be loaded, and kernels compiled."""

OWN: Mapping[str, Any] = {
    "cluster": {"placement": "colocated", "replicas": 1},
    "engine": {"max_seqs": 16, "max_batched_tokens": 512, "kv_tokens": 4096, "block_tokens": 32},
    "workload": {
        "batch_groups": 4,
        "group_size": 4,
        "prompt_tokens": 24,
        "max_new_tokens": 64,
        "lengths": {
            "family": "lognormal",
            "median_tokens": 32,
            "between_sd": 0.3,
            "within_sd": 0.3,
        },
    },
    "cost": {
        "linear": {
            "iteration_s": 2.6e-3,
            "per_rollout_s": 6.0e-5,
            "per_context_token_s": 1.8e-7,
            "per_prefill_token_s": 2.6e-5,
            "train_per_token_s": 7.0e-5,
        }
    },
}
"""What is examined without a scenario: a random model of 0.6M parameters. Costs: of vLLM with one
CPU core, as in examples/engine.yaml."""

OnStage = Callable[[str], None]


def examine(raw: RawScenario | None, on_stage: OnStage | None = None) -> Iterator[Finding]:
    """The findings for a scenario, or for this machine alone. on_stage: called with the name of
    each stage. Raises ScenarioError where the scenario is wrong on any machine."""
    yield from packages()
    ready = engines_ready()
    if not ready:
        if raw is not None:
            from rollcast.engine.config import build_run

            with suppress(EngineError):  # which the finding tells
                build_run(raw, elsewhere=True)
        yield Finding(
            "engines",
            "fails",
            "no engine is installed, so rollcast run cannot start: pip install 'rollcast[hf]' "
            "(transformers, for laptops) or 'rollcast[engine]' (vLLM, for GPUs); simulate, plan "
            "and check need none",
        )
        return
    if raw is None:
        yield from _stages(RawScenario(_with(OWN, name=ready[0])), ready, on_stage)
        return
    from rollcast.engine.config import build_run

    spec = build_run(raw, elsewhere=True)
    try:
        build_run(raw)
    except RollcastError as error:
        yield Finding("scenario", "fails", str(error))
        return
    yield Finding("scenario", "ok", f"{raw.name} can be carried out on such a machine")
    yield from _stages(raw, [spec.engine.name], on_stage)


def _stages(raw: RawScenario, names: list[str], on_stage: OnStage | None) -> Iterator[Finding]:
    """Devices and trainer once, and each of these engines."""
    with tempfile.TemporaryDirectory() as folder:
        data = raw.data
        if not _engine(data).get("model"):
            from rollcast.engine.doctor.training import model_in

            model_in(Path(folder))
            data = _with(data, model=folder)
        for stage, name in [("devices", names[0]), ("training", names[0])] + [
            ("engine", name) for name in names
        ]:
            if on_stage is not None:
                on_stage(stage if stage != "engine" else f"engine {name}")
            yield from _stage(stage, raw, _with(data, name=name))


def _stage(stage: str, raw: RawScenario, data: Mapping[str, Any]) -> list[Finding]:
    modules = None if raw.modules is None else str(raw.modules)
    asked = {"scenario": data, "folder": str(raw.folder.resolve()), "modules": modules}
    done = child.python(["-m", "rollcast.engine.doctor", stage], LIMIT_S, json.dumps(asked))
    found: list[Finding] = []
    if lines := done.out.strip().splitlines():
        try:
            found = [Finding(**row) for row in json.loads(lines[-1])]
        except (ValueError, TypeError):
            found = []
    if done.code != 0:
        reason = done.reason.removeprefix("error: ")
        found.append(Finding(stage, "fails", reason, {"seconds": done.seconds}))
    return found


def _engine(data: Mapping[str, Any]) -> Mapping[str, Any]:
    section = data.get("engine")
    return section if isinstance(section, Mapping) else {}


def _with(data: Mapping[str, Any], **engine: str) -> dict[str, Any]:
    """The scenario with these keys of its engine."""
    return {**data, "engine": {**_engine(data), **engine}}
