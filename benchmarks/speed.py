"""Speed and memory of the simulator and of imports: ``python -m benchmarks.speed``.

Each row runs in a process of its own, so that peak memory is its own. Wall-clock targets and the
best peer's figures (measured by others on a 2-core machine, on the same 512 lengths) stand beside
what was measured here. The peer workload's lengths are read from a file if ``--peer-workload``
names one (JSON: ``{"prompt": 512, "out": [...]}``); otherwise lengths of the same distribution
are drawn (lognormal, median 3,000, sd of the log 1.0, cap 16,384), which the table then says.
Commands are timed without intervals, which no peer gives. Imports are of runs of 500 steps: 100 MB
of dumped texts (verl) or tokens (NeMo-RL), and a console with 200 MB of other lines.
"""

import json
import random
import resource
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.runner import (
    RESULTS,
    in_process,
    machine,
    parser,
    peak_mb,
    rollcast,
    timed,
    write_json,
)

SCENARIO = """
cluster: {{placement: colocated, replicas: {replicas}, routing: {routing}}}
engine: {{max_seqs: 256, max_batched_tokens: 8192, kv_tokens: {kv_tokens}, prefix_caching: true}}
{environment}
workload:
  batch_groups: {groups}
  group_size: {size}
  max_new_tokens: {cap}
  {lengths}
policy: {policy}
cost:
  linear:
    iteration_s: 6.0e-3
    per_rollout_s: 2.0e-5
    per_context_token_s: 2.2e-8
    per_prefill_token_s: 4.0e-6
    train_per_token_s: 1.0e-5
    train_fixed_s: 0.0
    sync_s: 1.0
steps: {steps}
seed: 0
"""
AWAY = "environment: {slots: 512, turn_s: {family: lognormal, median_s: 3, sd: 1.2}}"


def lengths(peer: str | None, median: float = 3000) -> str:
    """The lengths of a scenario: the peers' file, or the distribution it was drawn from."""
    if peer:
        return f"lengths: {{trace: {json.dumps(str(Path(peer).absolute()))}, repeat: true}}"
    family = f"family: lognormal, median_tokens: {median}, between_sd: 0.0, within_sd: 1.0"
    return f"prompt_tokens: 512\n  lengths: {{{family}}}"


def scenario(**given: object) -> str:
    shape = {"replicas": 1, "groups": 512, "size": 1, "cap": 16384, "steps": 1, "policy": "[]"}
    engine = {"routing": "round_robin", "kv_tokens": 421_000, "environment": ""}
    return SCENARIO.format(**{**shape, **engine, "lengths": lengths(None), **given})


def turns(factor: int) -> str:
    """1,024 rollouts of 20 turns, each of about ``25 * factor`` tokens."""
    spec = (
        f"lengths: {{family: lognormal, median_tokens: {25 * factor}, between_sd: 0.2, "
        "within_sd: 0.2}\n  prompt_tokens: 1000\n"
        "  turns: {family: lognormal, median: 20, between_sd: 0, within_sd: 0, max_turns: 20, "
        f"observation_tokens: {50 * factor}, length_sd: 0.5}}"
    )
    shape = {"replicas": 8, "groups": 64, "size": 16, "cap": 4000, "lengths": spec}
    engine = {"routing": "session_affinity", "kv_tokens": 2_000_000, "environment": AWAY}
    return scenario(**shape, **engine)


def simulated(text: str, repeats: int) -> dict[str, float]:
    """Wall seconds of a simulation, without imports and reading; the least of several."""
    from rollcast.simulator.scenario.file import parse_scenario
    from rollcast.simulator.studies.simulate import from_raw, simulate

    raw = parse_scenario(text)
    fresh = [from_raw(raw) for _ in range(repeats)]
    runs = [timed(partial(simulate, made)) for made in fresh]
    summary = runs[0][0].summary
    keys = {"makespan_s": "makespan_s", "tokens": "generated_tokens", "rollouts": "rollouts"}
    best = {"wall_s": min(wall for _, wall, _ in runs), "peak_mb": peak_mb()}
    return {**best, **{name: summary[key] for name, key in keys.items()}}


def commanded(words: list[str]) -> dict[str, float]:
    """Wall seconds and peak memory of a command, its start included."""
    _, wall_s, _ = timed(lambda: rollcast(*words))
    return {"wall_s": wall_s, "peak_mb": peak_mb(resource.RUSAGE_CHILDREN)}


def isolated(text: str, repeats: int = 1) -> dict[str, float]:
    """`simulated` in a process of its own."""
    return dict(in_process("benchmarks.speed:simulated", text, repeats))


def command_line(text: str, *options: str, repeats: int = 3) -> dict[str, float]:
    """`commanded` of a simulation; the least of several."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "scenario.yaml")
        path.write_text(text)
        runs = [
            in_process(
                "benchmarks.speed:commanded",
                ["simulate", str(path), "--out", f"{folder}/{i}", "--draws", "0", *options],
            )
            for i in range(repeats)
        ]
    return {key: min(run[key] for run in runs) for key in runs[0]}


# Logs to import

STEPS = 500


def metrics(step: int, counts: list[int]) -> dict[str, float]:
    timing = {"timing_s/gen": 3.0, "timing_s/update_actor": 2.0, "timing_s/step": 6.0 + step % 3}
    other = {f"actor/other_{i}": 0.5 for i in range(80)}
    mean = sum(counts) / len(counts)
    return {**timing, **other, "response_length/mean": mean, "response_length/max": max(counts)}


def verl(folder: Path) -> None:
    draw = random.Random(0)
    with (folder / "run.jsonl").open("w") as file:
        for step in range(1, STEPS + 1):
            counts = [draw.randrange(100, 700) for _ in range(512)]
            file.write(json.dumps({"step": step, "data": metrics(step, counts)}) + "\n")
            rows = (
                {
                    "input": f"question {step} {i // 8}",
                    "output": "ab c " * (n // 7),
                    "gts": "1",
                    "score": float(i % 2),
                    "step": step,
                    "uid": f"u{step}-{i // 8}_{i % 8}_0",
                }
                for i, n in enumerate(counts)
            )
            dump(folder / "rollout_data" / f"{step}.jsonl", rows)


def nemo_rl(folder: Path) -> None:
    draw = random.Random(0)
    for step in range(1, STEPS + 1):
        dump(folder / f"train_data_step{step}.jsonl", (nemo_row(draw) for _ in range(32)))


def nemo_row(draw: random.Random) -> dict[str, object]:
    made = draw.randrange(100, 1000)
    ids = [draw.randrange(150_000) for _ in range(50 + made)]
    mask = [[0] * 50 + [1] * made]
    known = {"content": ["x"], "rewards": [1.0], "input_lengths": [50 + made]}
    return {**known, "token_loss_mask": mask, "token_ids": [ids]}


def console(folder: Path) -> None:
    draw = random.Random(0)
    sample = "INFO worker loaded shard of model in 3.4 s (EngineCore pid=12) request done"
    words = sample.split(" ")
    noise = "".join(" ".join(draw.choices(words, k=12)) + "\n" for _ in range(6000))
    with (folder / "console.log").open("w") as file:
        for step in range(1, STEPS + 1):
            file.write(noise)
            parts = [f"{key}:{item}" for key, item in metrics(step, [100, 200]).items()]
            file.write(f"(TaskRunner pid=1) step:{step} - {' - '.join(parts)}\n")


def dump(path: Path, rows: Iterator[dict[str, object]]) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def imported(make: Callable[[Path], None]) -> dict[str, float]:
    """`commanded` of an import."""
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work, "run")
        folder.mkdir()
        make(folder)
        words = ["import", str(folder), "--out", str(Path(work, "out"))]
        return dict(in_process("benchmarks.speed:commanded", words))


def rows(peer_file: str | None, quick: bool) -> Iterator[tuple[str, str, str, dict[str, float]]]:
    """What is done, the target, the best peer's figures, and what was measured."""
    work = lengths(peer_file)
    peer = scenario(lengths=work)
    yield "peer workload, in process", "0.10 s", "1.34 s", isolated(peer, 5)
    plain = command_line(peer, "--no-plot")
    yield "  command line, --no-plot", "0.6 s, 160 MB", "1.34 s, 161 MB", plain
    yield "  command line, with the picture", "1.3 s", "-", command_line(peer)
    big = isolated(scenario(replicas=16, groups=8192, lengths=work), 2)
    yield "8,192 requests on 16 replicas", "2 s, 300 MB", "50.9 s, 1.16 GB", big
    if not quick:
        policy = "[{april: {over_sampling: 2.0}}]"
        april = scenario(replicas=8, groups=32, size=8, steps=1000, policy=policy)
        name = "1,000 steps of APRIL, 512 in flight, 8 replicas"
        yield name, "60 s", "none can", isolated(april)
    for count in (512, 1024, 2048, 4096, 8192, 16384):
        yield f"  {count} rollouts", "linear", "-", isolated(scenario(replicas=8, groups=count))
    for factor in (1, 4, 16, 64):
        shape = {"groups": 1024, "cap": 2000 * factor, "kv_tokens": 100_000 * factor}
        text = scenario(replicas=8, lengths=lengths(None, 500 * factor), **shape)
        yield f"  1,024 rollouts, median {500 * factor} tokens", "flat", "-", isolated(text)
    for factor in (1, 4, 16):
        name = f"  1,024 rollouts x 20 turns of {25 * factor} tokens"
        yield name, "3 s, 300 MB, flat", "none can", isolated(turns(factor), 2)
    if not quick:
        for name, make in {"texts": verl, "tokens": nemo_rl, "console": console}.items():
            yield f"import, {name}", "10 s, 500 MB", "none can", imported(make)


def main() -> None:
    """Measures, and writes each row as soon as it is there."""
    options = parser(__doc__)
    options.add_argument("--peer-workload", metavar="FILE.json")
    options.add_argument("--quick", action="store_true", help="neither 1,000 steps nor imports")
    given = options.parse_args()
    content: dict[str, Any] = {"machine": machine(), "peer_workload": bool(given.peer_workload)}
    content["rows"] = []
    for name, target, peer, measured in rows(given.peer_workload, given.quick):
        content["rows"].append({"work": name, "target": target, "best_peer": peer, **measured})
        wall, peak = measured["wall_s"], measured["peak_mb"]
        print(f"{name:<58} {wall:8.3f} s {peak:7.0f} MB   target {target:<18} peer {peer}")
        write_json(RESULTS / "speed.json", content)


if __name__ == "__main__":
    main()
