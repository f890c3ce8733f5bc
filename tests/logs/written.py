"""One small run, written as each stack writes its logs.

Where a project's own writer installs cheaply (TensorBoard's), it is used; the others are written
here in the format of their sources, which the readers name.
"""

import csv
import json
import pickle
import random
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import yaml

STEPS, GROUPS, SIZE, CAP, PROMPT = 5, 4, 2, 200, 10


@dataclass(frozen=True)
class Truth:
    """A step: its lengths by (group, index), rewards, and seconds. switch_s: of sync_s, what frees
    and takes the GPUs' memory, for stacks that time it apart. wait_s: of a trainer beside which the
    rollouts are made."""

    step: int
    lengths: tuple[tuple[int, ...], ...]
    rewards: tuple[tuple[float, ...], ...]
    generation_s: float
    log_prob_s: float
    update_s: float
    sync_s: float
    step_s: float
    switch_s: float | None = None
    wait_s: float = 0.0

    @property
    def moved_s(self) -> float:
        """Of the weights alone."""
        return self.sync_s - (self.switch_s or 0.0)

    @property
    def flat(self) -> list[int]:
        return [n for group in self.lengths for n in group]

    @property
    def each(self) -> list[tuple[int, int, int, float]]:
        """(group, index, length, reward) of every rollout."""
        return [
            (g, i, n, self.rewards[g][i])
            for g, lengths in enumerate(self.lengths)
            for i, n in enumerate(lengths)
        ]

    @property
    def mean(self) -> float:
        return sum(self.flat) / len(self.flat)

    @property
    def cut(self) -> float:
        return sum(n == CAP for n in self.flat) / len(self.flat)

    @property
    def reward(self) -> float:
        return sum(map(sum, self.rewards)) / self.rollouts

    @property
    def tokens(self) -> int:
        return sum(self.flat) + self.rollouts * PROMPT

    @property
    def longest(self) -> float:
        return float(max(self.flat))

    @property
    def shortest(self) -> float:
        return float(min(self.flat))

    @property
    def prompt(self) -> float:
        return float(PROMPT)

    @property
    def whole(self) -> float:
        """Mean length with the prompt."""
        return self.mean + PROMPT

    @property
    def rollouts(self) -> int:
        return GROUPS * SIZE

    @property
    def phases_s(self) -> float:
        return self.generation_s + self.log_prob_s + self.update_s + self.sync_s

    @property
    def prepared_s(self) -> float:
        return self.sync_s + (self.switch_s is None) * 0.1


def run(first: int = 1, seed: int = 0) -> list[Truth]:
    """The run, with steps from ``first``."""
    rng = random.Random(seed)
    steps = []
    each = range(SIZE)
    for step in range(first, first + STEPS):
        lengths = tuple(
            tuple(min(rng.randrange(20, 230), CAP) for _ in each) for _ in range(GROUPS)
        )
        rewards = tuple(tuple(float(rng.random() < 0.5) for _ in each) for _ in range(GROUPS))
        phases = [round(rng.uniform(1, 9), 3) for _ in range(4)]
        steps.append(Truth(step, lengths, rewards, *phases, sum(phases) + 0.25))
    return steps


def rows(values: Callable[[Truth], dict[str, Any]], truth: Sequence[Truth]) -> list[dict[str, Any]]:
    """An exported Weights & Biases history."""
    return [{"_step": t.step, **values(t)} for t in truth]


def lines(path: Path, rows: Iterable[Any]) -> Path:
    """JSON lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def history(path: Path, truth: Sequence[Truth], stack: str) -> Path:
    """JSON lines of a stack's figures, as exported from Weights & Biases."""
    return lines(path, rows(partial(values, stack), truth))


def table(path: Path, rows: list[dict[str, Any]]) -> Path:
    """CSV."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


KEYS = yaml.safe_load((Path(__file__).parent / "keys.yaml").read_text("utf-8"))


def values(stack: str, t: Truth, **more: float) -> dict[str, Any]:
    """A step's figures as a stack names them."""
    own = {key: getattr(t, it) if isinstance(it, str) else it for key, it in KEYS[stack].items()}
    return {**{key: value for key, value in own.items() if value is not None}, **more}


verl_values, trl_entry = partial(values, "verl"), partial(values, "trl")
nemo_values, areal_values = partial(values, "nemo_rl"), partial(values, "areal")
skyrl_values, openrlhf_values = partial(values, "skyrl"), partial(values, "openrlhf")
roll_values, table_values = partial(values, "roll"), partial(values, "table")

# verl


def verl_file(path: Path, truth: Sequence[Truth], **more: float) -> Path:
    """utils/tracking.py FileLogger."""
    return lines(path, ({"step": t.step, "data": verl_values(t, **more)} for t in truth))


def easyr1_file(path: Path, truth: Sequence[Truth]) -> Path:
    """verl/utils/logger/logger.py FileLogger of EasyR1: keys in mappings of their parts."""
    rows = []
    for t in truth:
        row: dict[str, Any] = {"step": t.step}
        for key, value in verl_values(t).items():
            place = row
            *above, last = key.replace("old_log_prob", "old").split("/")
            for name in above:
                place = place.setdefault(name, {})
            if last not in ("update_weights", "global_step"):
                place[last] = value
        rows.append(row)
    return lines(path, rows)


def verl_line(t: Truth, **more: float) -> str:
    """utils/logger/aggregate_logger.py, with numpy's own spelling of some."""
    wrapped = {"response_length/mean", "num_turns/mean"}
    parts = [
        f"{key}:np.float64({value!r})" if key in wrapped else f"{key}:{value!r}"
        for key, value in verl_values(t, **more).items()
    ]
    return " - ".join([f"step:{t.step}", *parts])


VERL_CONFIG = """\
{'actor_rollout_ref': {'actor': {'ppo_mini_batch_size': 4,
                                 'ppo_epochs': 1},
                       'hybrid_engine': True,
                       'model': {'path': '/models/Qwen/Qwen3-8B'},
                       'rollout': {'n': 2,
                                   'name': 'vllm',
                                   'tensor_model_parallel_size': 2}},
 'data': {'max_response_length': 200, 'train_batch_size': 4},
 'trainer': {'n_gpus_per_node': 8, 'nnodes': 1, 'use_v1': False}}"""


def verl_dump(folder: Path, truth: Sequence[Truth], v1: bool = True, order: int | None = 0) -> Path:
    """rollout_data_dir: one file a step. order: None leaves rows in the order of the batch."""
    rng = random.Random(order)
    for t in truth:
        rows = [
            {
                **{"input": f"prompt {t.step} {g}", "output": "x" * n, "gts": "1", "score": r},
                **{"step": t.step, **({"uid": f"u{t.step}-{g}_{i}_0"} if v1 else {"acc": r})},
            }
            for g, i, n, r in t.each
        ]
        if order is not None:
            rng.shuffle(rows)
        lines(folder / f"{t.step}.jsonl", rows)
    return folder


# TRL


def trl_state(path: Path, truth: Sequence[Truth]) -> Path:
    """transformers' TrainerState.save_to_json: indented, keys sorted."""
    history: list[dict[str, Any]] = [trl_entry(t) for t in truth]
    total = 0.0
    for entry, t in zip(history, truth, strict=True):
        total += t.tokens
        entry["num_tokens"] = total
    history.append({"step": truth[-1].step, "train_runtime": 9.0, "epoch": 1.0})
    last = truth[-1].step
    state = {"global_step": last, "log_history": history, "logging_steps": 1, "max_steps": last}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(state, indent=2, sort_keys=True) + "\n")
    return path


def trl_completions(folder: Path, truth: Sequence[Truth]) -> Path:
    """completions/completions_00001.parquet, a file a step; one character a token."""
    import pandas as pd

    folder.mkdir(parents=True, exist_ok=True)
    for t in truth:
        rows = [(t.step, f"p{t.step}-{g}", "x" * n, r, 0.0) for g, _, n, r in t.each]
        columns = ["step", "prompt", "completion", "right", "advantage"]
        table = pd.DataFrame(rows, columns=columns)
        table.to_parquet(folder / f"completions_{t.step:05d}.parquet")
    return folder


def trl_trackio(path: Path, truth: Sequence[Truth], config: Mapping[str, Any]) -> Path:
    """trackio's database: TRL's profile of a step, which nests, and its entry of the log."""
    import sqlite3
    from contextlib import closing

    at = "profiling/Time taken: GRPOTrainer."
    with closing(sqlite3.connect(path)) as base:
        base.execute("CREATE TABLE metrics (run_name TEXT, step INT, timestamp TEXT, metrics TEXT)")
        base.execute("CREATE TABLE configs (run_name TEXT, config TEXT)")
        base.execute("INSERT INTO configs VALUES ('r', ?)", [json.dumps(config)])
        seen = 0
        for t in truth:
            seen += t.tokens
            made = t.generation_s + t.sync_s
            rows: list[tuple[int, dict[str, float]]] = [
                (t.step - 1, {f"{at}sync_weights": t.sync_s}),
                (t.step - 1, {f"{at}vLLM.generate": t.generation_s}),
                (t.step - 1, {f"{at}_calculate_rewards": 0.0}),
                (t.step - 1, {f"{at}_prepare_inputs": made + t.log_prob_s}),
                (t.step - 1, {f"{at}compute_loss": t.update_s / 3}),
            ]
            entry = {f"train/{key}": item for key, item in trl_entry(t).items()}
            entry |= {"train/num_tokens": seen, "train/global_step": t.step}
            rows.append((1000 + t.step, entry))
            for step, values in rows:
                base.execute(
                    "INSERT INTO metrics VALUES ('r', ?, '', ?)", [step, json.dumps(values)]
                )
        base.commit()
    return path


# slime


def slime_lines(t: Truth) -> list[str]:
    """observability/rollout_metrics.py and train_metric_utils.py and log_utils.py: three lines a
    step."""
    made = (
        f"{{'rollout/response_len/mean': np.float64({t.mean}), "
        f"'rollout/response_len/median': 50.0, "
        f"'rollout/response_len/max': {max(t.flat)}, 'rollout/response_len/min': {min(t.flat)}, "
        f"'rollout/truncated_ratio': {t.cut}, 'rollout/raw_reward': {t.reward}, "
        f"'perf/rollout_time': {t.generation_s}, 'perf/tokens_per_gpu_per_sec': tensor(177.5), "
        f"'perf/longest_sample_tokens_per_sec': 44.5}}"
    )
    trained = {
        "perf/train_wait_time": t.generation_s + 0.25,
        "perf/log_probs_time": t.log_prob_s,
        "perf/actor_train_time": t.update_s,
        "perf/train_time": t.log_prob_s + t.update_s,
        "perf/update_weights_time": t.moved_s,
        "perf/step_time": t.generation_s + 0.25 + t.log_prob_s + t.update_s,
    }
    if t.switch_s is not None:
        trained |= {"perf/sleep_time": t.switch_s / 2, "perf/wake_up_time": t.switch_s / 2}
    share = {
        "rollout/response_lengths": t.mean,
        "rollout/total_lengths": t.mean + PROMPT,
        "rollout/truncated": t.cut,
        "rollout/raw_reward": 0.123,
    }
    return [
        f"\x1b[36m(RolloutManager pid=7, ip=10.0.0.3)\x1b[0m [2026-08-01 10:00:00] "
        f"rollout_metrics.py:268 - perf {t.step}: {made}",
        f"\x1b[36m(MegatronTrainRayActor pid=9)\x1b[0m [2026-08-01 10:00:09] "
        f"train_metric_utils.py:401 - perf {t.step}: {trained}",
        f"\x1b[36m(MegatronTrainRayActor pid=9)\x1b[0m [2026-08-01 10:00:09] log_utils.py:54 - "
        f"rollout {t.step}: {share}",
    ]


def slime_samples(t: Truth, tool: int = 0) -> dict[str, Any]:
    """utils/types.py Sample.to_dict, with a trace of one generation (utils/trace_utils.py)."""
    samples = []
    for g, i, n, r in t.each:
        span = {"name": "sglang_generate", "span_id": "s", "trace_id": "t"}
        start = 1000.0 * t.step + i
        counts = {"prompt_tokens": PROMPT, "completion_tokens": n, "cached_tokens": 0}
        events = [
            {"type": "span_start", "ts": start, **span},
            {
                **{"type": "span_end", "ts": start + n / 10, **span},
                "attrs": {**counts, "queue_time": 0.5},
            },
        ]
        samples.append(
            {
                **{"group_index": g, "index": g * SIZE + i, "prompt": f"p{g}", "response": "x"},
                "tokens": [1] * (PROMPT + n + tool),
                "response_length": n + tool,
                "loss_mask": [1] * n + [0] * tool
                if tool
                else None,  # as slime leaves it without tools
                "reward": {"score": r},
                "status": "truncated" if n == CAP else "completed",
                "weight_versions": [str(t.step)],
                "trace": {"version": 1, "events": events},
            }
        )
    return {"rollout_id": t.step, "samples": samples}


def torch_file(path: Path, value: Any) -> Path:
    """As torch.save writes a value without tensors."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{path.stem}/data.pkl", pickle.dumps(value, protocol=2))
        archive.writestr(f"{path.stem}/byteorder", "little")
    return path


# NeMo-RL


def nemo_console(t: Truth) -> str:
    """The block that a step prints."""
    values = {
        k.removeprefix("timing/train/"): v
        for k, v in nemo_values(t).items()
        if k.startswith("timing/train/") and "total_step" not in k
    }
    rows = [f"  • {k}: {v:.2f}s ({100 * v / t.step_s:.1f}%)" for k, v in values.items()]
    return "\n".join(
        [
            "",
            f"========================= Step {t.step}/90 =========================",
            "▶ Preparing batch...",
            "",
            "📊 Training Results:",
            "  • Loss: 0.0123",
            f"  • Avg Reward: {t.reward:.4f}",
            f"  • Mean Generation Length: {t.mean:.4f}",
            "",
            "⏱️  Timing:",
            f"  • Total step time: {t.step_s:.2f}s",
            *rows,
            "",
            "🔍 Performance Metrics:",
            "  - Mean Total Tokens per Sample: 9.00",
        ]
    )


def nemo_dump(folder: Path, truth: Sequence[Truth], tool: int = 0) -> Path:
    """train_data_step{N}.jsonl: microbatches of one, so lists of length one."""
    for t in truth:
        rows = [
            {
                "content": ["text"],
                "rewards": [r],
                "input_lengths": [PROMPT + n + tool],
                "token_loss_mask": [[0] * PROMPT + [1] * n + [0] * tool],
                "token_ids": [[100 + g] * PROMPT + [7] * (n + tool)],
                "sample_loss_mask": [1.0],
            }
            for g, _, n, r in t.each
        ]
        lines(folder / f"train_data_step{t.step}.jsonl", rows)
    return folder


# prime-rl


def prime_metrics(path: Path, truth: Sequence[Truth]) -> Path:
    """monitors/file.py: trainer and orchestrator append to one file, both with time/step."""
    rows: list[dict[str, Any]] = []
    tokens = "train/agg/effective/num_output_tokens"
    for t in truth:
        common = {"step": t.step, "time": 1e9 + t.step}
        rows.append(
            {
                **common,
                "time/step": t.step_s + 3,
                **{"time/pack": 0.1, "time/wait_for_policy": 0.2},
                **{"off_policy/mean": 1.0, "off_policy/max": 2.0},
                f"{tokens}/mean": t.mean,
                f"{tokens}/max": max(t.flat),
                f"{tokens}/min": min(t.flat),
            }
        )
        rows.append(
            {
                **common,
                "time/step": t.step_s,
                "time/wait_for_batch": t.wait_s or t.generation_s,
                "time/forward_backward": t.update_s,
                "time/broadcast_weights": t.sync_s,
                **{"perf/mfu": 30.0, "perf/throughput": 1.0},
            }
        )
    return lines(path, rows)


def prime_traces(folder: Path, truth: Sequence[Truth], episodes: bool = True) -> Path:
    """rollouts/step_N/train/{all,effective}/traces.jsonl: all holds one rollout more a step."""
    for t in truth:
        rows = []
        for g, i, n, r in t.each:
            start = 1000.0 * t.step + i
            usage = ((PROMPT, 0, n // 2), (5, PROMPT + n // 2, n - n // 2))
            keys = ("prompt_tokens", "cached_input_tokens", "completion_tokens")
            calls = [
                {
                    **{"node": k, "finish_reason": "stop", "policy": t.step},
                    "time": {"start": start + 10 * k, "end": start + 10 * k + 4},
                    "usage": dict(zip(keys, usage[k], strict=True)),
                }
                for k in range(2)
            ]
            rewards = {"ok": {"score": r, "weight": 1.0}}
            trace = {"id": f"{t.step}-{g}-{i}", "calls": calls, "nodes": [], "rewards": rewards}
            work = {"work": {"type": "train", "step": t.step}}
            beside = {"group": {"id": f"g{t.step}-{g}"}, "run": work}
            episode = {"id": f"e{t.step}-{g}-{i}", "traces": [trace]}
            rows.append({**(episode if episodes else trace), **beside})
        base = folder / "rollouts" / f"step_{t.step}" / "train"
        lines(base / "effective" / "traces.jsonl", rows[1:])
        lines(base / "all" / "traces.jsonl", rows)
    return folder


# AReaL


def areal_console(t: Truth) -> str:
    """utils/stats_logger.py: a line, and a table of two pairs of columns. Counts from 1."""
    items = list(areal_values(t).items())
    if len(items) % 2:
        items.append(("rollout/other", 1.0))
    rows = [
        "│ " + " │ ".join(f"{k:<30} │ {v:>12.4e}" for k, v in items[at : at + 2]) + " │"
        for at in range(0, len(items), 2)
    ]
    bar = "─" * 20
    head = (
        f"20260801-10:00:00 StatsLogger INFO: Epoch 1/2 Step 3/9 Train step {t.step + 1}/90 done."
    )
    return "\n".join([head, "StatsLogger INFO: Stats (1/1):", f"╭{bar}╮", *rows, f"╰{bar}╯"])


def areal_dump(folder: Path, truth: Sequence[Truth]) -> Path:
    """infra/workflow_executor.py: a file a task, and utils/perf_tracer.py's sessions."""
    sessions = []
    for t in truth:
        dumped: dict[int, list[dict[str, Any]]] = {}
        for g, i, n, r in t.each:
            task = t.step * 100 + g
            lengths = {"seqlen": PROMPT + n, "prompt_len": PROMPT}
            versions = {"head_version": -1, "tail_version": t.step}
            texts = {"prompt": f"p{task}", "completion": "x"}
            row = {"task_id": task, "sample_idx": i, "reward": r, **lengths, **versions, **texts}
            dumped.setdefault(task, []).append(row)
            at = 1000.0 * t.step + i
            phases = {
                "generate": [{"start_ts": at, "end_ts": at + n / 10}],
                "toolcall": [{"start_ts": at + 1, "end_ts": at + 1.5}],
            }
            session = {"task_id": task, "session_id": task * 10 + i, "status": "accepted"}
            times = {"submit_ts": at, "finalized_ts": at + n, "total_s": n}
            sessions.append({**session, **times, "phases": phases})
        for task, rows in dumped.items():
            lines(folder / "rollout" / str(t.step) / f"{task}.jsonl", rows)
    lines(folder / "session_tracer" / "sessions-r0.jsonl", sessions)
    return folder


# SkyRL, OpenRLHF, ROLL


def skyrl_console(t: Truth) -> str:
    """utils/tracking.py ConsoleLogger: pprint of floats as texts, after loguru's prefix."""
    from pprint import pformat

    shown = pformat({key: f"{value:.4f}" for key, value in skyrl_values(t).items()})
    head = "2026-08-01 10:00:00.000 | INFO     | skyrl.train.utils.tracking:log:182 - "
    return f"{head}Step {t.step}: \n{shown}"


def openrlhf_console(t: Truth) -> str:
    """trainer/ppo_trainer.py: through the logger of its actor."""
    return (
        f"\x1b[36m(PPOTrainer pid=31)\x1b[0m 2026-08-13 10:00:00.000 INFO     "
        f"Global step {t.step}: {openrlhf_values(t)}"
    )


def roll_dump(folder: Path, truth: Sequence[Truth]) -> Path:
    """pipeline/rlvr/utils.py: one line of columns a step."""
    for t in truth:
        row = {
            "global_step": [t.step] * len(t.each),
            "prompt": [f"p{g}" for g, *_ in t.each],
            "responses": ["x" * n for _, _, n, _ in t.each],
            "scores": [r for *_, r in t.each],
        }
        lines(folder / f"rollout_dump_data.step_{t.step}.jsonl", [row])
    return folder


def wandb_run(path: Path, rows: Sequence[Mapping[str, float]], config: Mapping[str, Any]) -> Path:
    """As Weights & Biases keeps a run; longer records are in parts, which end with their block."""

    def field(number: int, data: bytes) -> bytes:
        return varint(number << 3 | 2) + varint(len(data)) + data

    def varint(value: int) -> bytes:
        low = bytes([value & 0x7F | (0x80 if value > 0x7F else 0)])
        return low + varint(value >> 7) if value > 0x7F else low

    def item(key: str, value: Any, number: int) -> bytes:
        return field(1, field(number, key.encode()) + field(16, json.dumps(value).encode()))

    run = b"".join(item(key, value, 1) for key, value in config.items())
    records = [field(21, b"\n\x03any"), field(17, field(1, b"id") + field(4, run))]
    for row in rows:
        items = [item(key, value, 2) for key, value in row.items()]
        records.append(field(2, b"".join([*items, item("table", "x" * 20_000, 2)])))
    content = b":W&B\xe1\xbe\x00"
    for record in records:
        kind = 1
        while True:
            left = 32 * 1024 - len(content) % (32 * 1024)
            if left < 7:
                content += bytes(left)
                continue
            part, record = record[: left - 7], record[left - 7 :]
            kind = ({1: 2, 2: 3, 3: 3} if record else {1: 1, 2: 4, 3: 4})[kind]
            content += bytes(4) + len(part).to_bytes(2, "little") + bytes([kind]) + part
            if not record:
                break
    path.write_bytes(content)
    return path


def tensorboard(folder: Path, rows: Mapping[int, Mapping[str, float]]) -> Path:
    """Event files of TensorBoard's own protocol buffers, by tensorboardX's writer."""
    from tensorboardX import SummaryWriter

    with SummaryWriter(str(folder), write_to_disk=True) as writer:
        for step, values in rows.items():
            for key, value in values.items():
                writer.add_scalar(key, value, step)
    return folder


# A run's files, by stack


def _verl(folder: Path, truth: Sequence[Truth]) -> None:
    verl_file(folder / "run.jsonl", truth)
    said = "\n".join(f"(TaskRunner pid=7) {verl_line(t)}" for t in truth)
    start = "python -m verl.trainer.main_ppo trainer.nnodes=1"
    (folder / "console.log").write_text(f"{start}\n{VERL_CONFIG}\nnoise\n{said}\n")
    verl_dump(folder / "dump", truth)


def _trl(folder: Path, truth: Sequence[Truth]) -> None:
    trl_state(folder / "trainer_state.json", truth)
    trl_trackio(folder / "trl.db", truth, {"num_generations": SIZE})


def _prime(folder: Path, truth: Sequence[Truth]) -> None:
    prime_metrics(folder / "metrics.jsonl", truth)
    prime_traces(folder, truth)


def _roll(folder: Path, truth: Sequence[Truth]) -> None:
    history(folder / "metrics.jsonl", truth, "roll")
    roll_dump(folder / "dump", truth)


def _table(folder: Path, truth: Sequence[Truth]) -> None:
    table(folder / "steps.csv", [table_values(t) for t in truth])


def _nemo(folder: Path, truth: Sequence[Truth]) -> None:
    tensorboard(folder / "tb", {t.step: nemo_values(t) for t in truth})
    nemo_dump(folder, truth)


def _areal(folder: Path, truth: Sequence[Truth]) -> None:
    console(areal_console)(folder, truth)
    areal_dump(folder, truth)


def console(one: Callable[[Truth], str]) -> Callable[[Path, Sequence[Truth]], Path]:
    """A writer of consoles with other lines between the steps."""

    def write(folder: Path, truth: Sequence[Truth]) -> Path:
        path = folder / "console.log"
        path.write_text("starting\n" + "".join(f"{one(t)}\nother words\n" for t in truth))
        return path

    return write


slime_console = console(lambda t: "\n".join(slime_lines(t)))
FILES: dict[str, Callable[[Path, Sequence[Truth]], object]] = {
    **{"verl": _verl, "trl": _trl, "prime_rl": _prime, "roll": _roll, "table": _table},
    **{"nemo_rl": _nemo, "slime": slime_console, "areal": _areal},
    **{"skyrl": console(skyrl_console), "openrlhf": console(openrlhf_console)},
}
"""Writers of all files of a run into a folder."""


def files(stack: str) -> dict[str, bytes]:
    """A run's files by name."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        FILES[stack](folder, run())
        paths = (path for path in folder.rglob("*") if path.is_file())
        return {str(path.relative_to(folder)): path.read_bytes() for path in paths}
