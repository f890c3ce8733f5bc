"""Kills processes of real runs at random moments, and goes on: ``python -m benchmarks.kills``.

Two runs of a tiny model on transformers' engine, saved in the background after every update:

- **alone**: one process, which is killed and gone on with by ``--resume``. The model that it keeps
  in the end equals that of a run that nobody killed, to the last bit.
- **apart**: a replica and a trainer of two ranks in processes of their own, under a policy that
  trains while it samples. The victim is one of them or the driver. The run comes to its last step
  every time, its decisions are those that its record gives, engine and trainer agree after each
  sync, and the kept model is that of the last save.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

SCENARIO = """\
cluster: {{placement: {placement}, replicas: 1, trainer_gpus: {ranks}}}
engine:
  name: transformers
  model: model
  max_seqs: 16
  max_batched_tokens: 512
  kv_tokens: 8192
  block_tokens: 32
  heartbeat_s: 60
  task: {{prompts: prompts.jsonl, reward: "rewards:even"}}
  trainer: {{learning_rate: 1.0e-3, minibatches: 2}}
workload: {{batch_groups: 4, group_size: 4, max_new_tokens: 32}}
policy: [{policy}]
steps: {steps}
seed: 7
"""
REWARD = """\
def even(prompt, response, answer):
    return float(sum(map(ord, response)) % 2 == 0)
"""
_STARTING = "lost while it started"
ACTORS = ("ReplicaActor", "TrainerActor")


def home(folder: Path, placement: str, ranks: int, policy: str, steps: int) -> Path:
    """A scenario with its model, in a folder."""
    from transformers import LlamaConfig, LlamaForCausalLM

    from rollcast.engine.tasks.tokenizer import END_ID, PAD_ID, VOCABULARY, build_tokenizer

    folder.mkdir()
    config = LlamaConfig(
        vocab_size=len(VOCABULARY),
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        max_position_embeddings=256,
        initializer_range=0.1,
        bos_token_id=None,
        eos_token_id=END_ID,
        pad_token_id=PAD_ID,
    )
    LlamaForCausalLM(config).save_pretrained(folder / "model")
    build_tokenizer().save_pretrained(folder / "model")
    (folder / "rewards.py").write_text(REWARD)
    texts = [f"count to {i} and then {i * i} again" for i in range(40)]
    lines = [json.dumps({"prompt": text}) + "\n" for text in texts]
    (folder / "prompts.jsonl").write_text("".join(lines))
    scenario = SCENARIO.format(placement=placement, ranks=ranks, policy=policy, steps=steps)
    (folder / "scenario.yaml").write_text(scenario)
    return folder


def begin(folder: Path, out: str, log: Any) -> subprocess.Popen[bytes]:
    """``rollcast run``, going on where there is anything to go on from."""
    command = [sys.executable, "-m", "rollcast", "run", "scenario.yaml", "--out", out, "--no-plot"]
    if (folder / f"{out}.running").is_dir():
        command.append("--resume")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        command, cwd=folder, env=environment, stdout=log, stderr=log, start_new_session=True
    )


def victims(driver: subprocess.Popen[bytes]) -> list[tuple[str, int]]:
    """Names and ids of the driver and its actors."""
    import psutil

    found = [("driver", driver.pid)]
    try:
        below = psutil.Process(driver.pid).children(recursive=True)
    except psutil.Error:
        return found
    for process in below:
        try:
            title = " ".join(process.cmdline())
        except psutil.Error:  # it ended while it was looked at
            continue
        found += [(name, process.pid) for name in ACTORS if title.startswith(f"ray::{name}")]
    return found


def kill_until_done(
    folder: Path,
    out: str,
    kills: int,
    rng: random.Random,
    within_s: float,
    kinds: tuple[str, ...] = ("driver",),
) -> Counter[str]:
    """Runs to the end, with so many kills of these at most; who was killed."""
    killed: Counter[str] = Counter()
    wanted = rng.choice(kinds)
    with (folder / f"{out}.log").open("ab") as log:
        driver = begin(folder, out, log)
        while True:
            try:
                code = driver.wait(rng.uniform(0.2, within_s))
            except subprocess.TimeoutExpired:
                if killed.total() >= kills:
                    continue
                there = [victim for victim in victims(driver) if victim[0] == wanted]
                if not there:  # it has not started
                    continue
                name, pid = rng.choice(there)
                wanted = rng.choice(kinds)
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                killed[name] += 1
                if name == "driver":
                    driver.wait()
                    if (folder / out).is_dir():  # killed once its results were there
                        return killed
                    driver = begin(folder, out, log)
                continue
            if code != 0:
                said = (folder / f"{out}.log").read_text()[-2000:]
                if _STARTING in said:  # which ends a run: nobody waits for one that cannot start
                    driver = begin(folder, out, log)
                    continue
                raise SystemExit(f"after {dict(killed)} the run ended with {code}:\n{said}")
            return killed


def weights(folder: Path) -> dict[str, Any]:
    """Of a kept model."""
    from safetensors.torch import load_file

    return dict(load_file(folder / "model" / "model.safetensors"))


def require_equal(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    """To the last bit. Raises SystemExit."""
    import torch

    for name, tensor in theirs.items():
        if not torch.equal(ours[name], tensor):
            raise SystemExit(f"{name} is another after the kills")


def alone(folder: Path, kills: int, rng: random.Random) -> Counter[str]:
    """One process, killed and resumed."""
    at = home(folder, "colocated", 1, "april: {over_sampling: 1.5}", 30)
    kill_until_done(at, "whole", 0, rng, 60)
    killed: Counter[str] = Counter()
    while killed.total() < kills:
        out = f"killed-{killed.total()}"
        killed += kill_until_done(at, out, min(10, kills - killed.total()), rng, 14)
        require_equal(weights(at / out), weights(at / "whole"))
    return killed


def apart(folder: Path, kills: int, rng: random.Random) -> Counter[str]:
    """A driver, a replica and two ranks."""
    import torch

    from rollcast.engine.trainer.shard_files import described, read_into
    from rollcast.simulator.runs.replay import replay

    at = home(folder, "disaggregated", 2, "fully_async: {max_staleness: 2}", 40)
    killed: Counter[str] = Counter()
    while killed.total() < kills:
        out = f"killed-{killed.total()}"
        killed += kill_until_done(
            at, out, min(8, kills - killed.total()), rng, 30, ("driver", *ACTORS)
        )
        if replay(at / out).differs is not None:
            raise SystemExit("its decisions are not those of its record")
        summary = json.loads((at / out / "summary.json").read_text())
        if not summary["sync_log_prob_difference"] < 1e-4:
            raise SystemExit("engine and trainer differ")
        kept = weights(at / out)
        (save,) = (at / out / "checkpoint").glob("trainer-*")
        tensors = {
            name: torch.empty(entry.size, dtype=entry.properties.dtype)
            for name, entry in described(save).items()
            if name.startswith("model/")
        }
        read_into(tensors, save)
        require_equal(kept, {n.removeprefix("model/"): t for n, t in tensors.items()})
    return killed


def keep(file: Path, name: str, seed: int, killed: Counter[str], seconds: float) -> None:
    """Adds what was killed to a JSON file, which pieces of a hundred share."""
    known = json.loads(file.read_text())["pieces"] if file.exists() else []
    piece = {"kind": name, "seed": seed, "killed": dict(sorted(killed.items()))}
    piece |= {"seconds": round(seconds), "day": time.strftime("%Y-%m-%d"), "cores": os.cpu_count()}
    totals: Counter[str] = Counter()
    for one in (*known, piece):
        totals.update({f"{one['kind']}, {who}": count for who, count in one["killed"].items()})
    found = {"kills": totals.total(), "all_gone_on_from": dict(sorted(totals.items()))}
    file.write_text(json.dumps({**found, "pieces": [*known, piece]}, indent=1) + "\n")


def main() -> None:
    """Both, and who was killed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="a JSON file that these kills are added to")
    parser.add_argument("--kills", type=int, default=100, help="in all; half of them a kind")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kind", choices=["alone", "apart"], help="one of the two alone")
    asked = parser.parse_args()
    rng, began = random.Random(f"{asked.kind} {asked.seed}"), time.perf_counter()
    kinds = {"alone": alone, "apart": apart}
    chosen = [asked.kind] if asked.kind else [*kinds]
    with tempfile.TemporaryDirectory(prefix="rollcast-kills-") as folder:
        for name in chosen:
            began_one = time.perf_counter()
            killed = kinds[name](Path(folder) / name, -(-asked.kills // len(chosen)), rng)
            who = ", ".join(f"{victim} {count}x" for victim, count in sorted(killed.items()))
            if asked.out is not None:
                keep(asked.out, name, asked.seed, killed, time.perf_counter() - began_one)
            print(f"{name}: {killed.total()} kills ({who}), all gone on from", flush=True)
    print(f"{time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
