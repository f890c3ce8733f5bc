"""A part of the campaign again, in the whole real world: the task ``sum`` from a warm start of the
campaign, sampled by transformers' continuous batching and trained by rollcast's own trainer, in
wall-clock time, with evaluations on held-out prompts.

The model is the campaign's, written as a GPT-2. vLLM has no attention kernel on CPUs for heads that
are so narrow (12), so transformers samples.
"""

import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.learning.arms import Arm
from benchmarks.learning.means import by_policy, means
from benchmarks.learning.tables import SIGNALS, TABLE, curves, rows, write
from benchmarks.learning.tasks import ALPHABET, END, EVALUATED, SCHEDULE, TASKS
from benchmarks.measure import Campaign, Measurement, measure
from benchmarks.runner import write_text
from rollcast.calibration.fits.learning import Fit, LearningRun, law_of
from rollcast.calibration.judge.learning import Judged, judge
from rollcast.calibration.learning import read_run
from rollcast.simulator.learning.data import prior

TASK, WARM = "sum", 0
LOSS = {"name": "grpo", "aggregation": "token_mean"}
REPEATED = (
    (Arm("sync"), (0, 1, 2)),
    (Arm("steps-off-6", "one_step_off(steps=6)"), (0, 1)),
    (Arm("pods-4-of-16", "pods(keep=4)", size=16), (0, 1)),
    (Arm("april-2", "april(over_sampling=2)"), (0, 1)),
)
"""Set-ups, and the seeds of their runs."""
FEW_TOKENS = 40
"""Of a microbatch of a trainer that is to be slower than its replica, so that tokens are old."""
WHOLE = TABLE.with_name("whole.jsonl.xz")
PROMPTS = 4096
CAP = TASKS[TASK].cap


def right(prompt: str, response: str, answer: str) -> float:
    """The task's reward function, as `rollcast run` calls it: without the end token."""
    return TASKS[TASK].reward(answer, response + END)


def scenario() -> dict[str, Any]:
    """The scenario that all runs share: the campaign's trainer and batch."""
    task = TASKS[TASK]
    return {
        "cluster": {"placement": "colocated", "replicas": 1},
        "engine": {
            "name": "transformers",
            "model": "model",
            "dtype": "float32",
            "max_seqs": 256,
            "max_batched_tokens": 4096,
            "kv_tokens": 16384,
            "block_tokens": 16,
            "max_model_len": task.width + CAP,
            "task": {"prompts": "prompts.jsonl", "reward": f"{__name__}:right"},
            "trainer": {
                "loss": LOSS,
                "learning_rate": task.learning_rate,
                "warmup_updates": SCHEDULE.warmup_updates,
                "microbatch_tokens": 4096,
            },
            "evaluation": {"every": 5, "prompts": EVALUATED},
            "save": {"every": 1000, "samples": 0, "final": False},
        },
        "workload": {
            "batch_groups": 12,
            "group_size": 8,
            "prompt_tokens": task.width,
            "max_new_tokens": CAP,
            "lengths": {
                "family": "lognormal",
                "median_tokens": 5,
                "between_sd": 0.2,
                "within_sd": 0.2,
            },
        },
        "policy": "sync",
        "steps": task.updates,
        "cost": {
            "linear": {
                "iteration_s": 5e-3,
                "per_rollout_s": 2e-5,
                "per_context_token_s": 0,
                "per_prefill_token_s": 1e-5,
                "train_per_token_s": 5e-5,
                "train_fixed_s": 0.05,
                "sync_s": 0.01,
            }
        },
    }


def export(folder: Path, warm_starts: Path) -> Path:
    """Writes model, tokenizer, prompts and scenario where they are missing; the scenario's path."""
    path = folder / "scenario.yaml"
    if not path.exists():
        _export_model(folder / "model", warm_starts)
        draw = random.Random(5)
        rows = dict(TASKS[TASK].prompt(draw) for _ in range(PROMPTS))
        lines = [json.dumps({"prompt": p, "answer": a}) for p, a in rows.items()]
        write_text(folder / "prompts.jsonl", "\n".join(lines) + "\n")
        write_text(path, json.dumps(scenario(), indent=1) + "\n")  # JSON is YAML
    return path


def _export_model(folder: Path, warm_starts: Path) -> None:
    """The warm start as a Hugging Face folder."""
    from transformers import GPT2Config, GPT2LMHeadModel

    from benchmarks.learning.warm import warm_start

    own = warm_start(TASK, WARM, warm_starts)
    config = GPT2Config(
        vocab_size=len(ALPHABET),
        n_positions=own.places,
        n_embd=own.width,
        n_layer=len(own.blocks),
        n_head=own.blocks[0].heads,
        activation_function="relu",
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=ALPHABET.index(END),
    )
    model: Any = GPT2LMHeadModel(config)
    model.load_state_dict(gpt2_weights(own.state_dict()))
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    _tokenizer().save_pretrained(folder)


def gpt2_weights(own: dict[str, Any]) -> dict[str, Any]:
    """The campaign's weights by GPT-2's names. Its head has no bias: ours goes into the last
    norm's, which has more dimensions than there are letters, so that the logits are the same."""
    import torch

    names = {"norms.0": "ln_1", "norms.1": "ln_2"}
    linear = {"qkv": "attn.c_attn", "out": "attn.c_proj", "up": "mlp.c_fc", "down": "mlp.c_proj"}
    head = own["head.weight"]
    shift = torch.linalg.pinv(head.double()) @ own["head.bias"].double()
    found = {
        "transformer.wte.weight": own["letters.weight"],
        "transformer.wpe.weight": own["order.weight"],
        "transformer.ln_f.weight": own["norm.weight"],
        "transformer.ln_f.bias": own["norm.bias"] + shift.float(),
        "lm_head.weight": head,
    }
    for key, value in own.items():
        if key.startswith("blocks."):
            _, layer, *parts, kind = key.split(".")
            part = ".".join(parts)
            turned = part in linear and kind == "weight"  # GPT-2 keeps its matrices transposed
            name = f"transformer.h.{layer}.{(names | linear)[part]}.{kind}"
            found[name] = value.T.contiguous() if turned else value
    return found


def _tokenizer() -> Any:
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    codes = {letter: code for code, letter in enumerate(ALPHABET)}
    tokenizer = Tokenizer(models.WordLevel(codes, unk_token=ALPHABET[0]))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    fast: Any = PreTrainedTokenizerFast
    # Any other special token would be left out of the text that is judged.
    return fast(tokenizer_object=tokenizer, eos_token=END, pad_token=END)


def measurements() -> Iterator[tuple[Arm, Measurement]]:
    """The runs: those of one seed first."""
    for place in range(max(len(seeds) for _, seeds in REPEATED)):
        for arm, seeds in REPEATED:
            if place < len(seeds):
                settings: dict[str, Any] = {
                    "workload.batch_groups": arm.groups,
                    "workload.group_size": arm.size,
                    "engine.trainer.minibatches": arm.minibatches,
                }
                if "steps" in arm.policy:  # trains beside the rollouts, and slower than they
                    settings["engine.trainer.microbatch_tokens"] = FEW_TOKENS
                    settings["cluster"] = {
                        "placement": "disaggregated",
                        "replicas": 1,
                        "trainer_gpus": 1,
                    }
                updates = TASKS[TASK].updates
                yield arm, Measurement(arm.name, arm.policy, seeds[place], updates, settings)


def make(folder: Path, warm_starts: Path, say: Callable[[str], None]) -> int:
    """Makes the runs that are missing in ``folder``, and the committed table of all; how many."""
    runs = list(measurements())
    campaign = Campaign(export(folder, warm_starts), tuple(run for _, run in runs))
    lines = []
    for arm, run in runs:
        say(run.name)
        lines.append(_line(read_run(measure(campaign, run, folder / "runs")), arm, run.seed))
    write(lines, WHOLE)
    return len(lines)


def _line(run: LearningRun, arm: Arm, seed: int) -> dict[str, Any]:
    """A run as a line of the campaign's table (`benchmarks.learning.tables`)."""
    signals = run.signals
    evaluated = ("updates", "accuracy", "right_tokens", "wrong_tokens")
    return {
        "task": TASK,
        "arm": arm.name,
        "warm": WARM,
        "seed": seed,
        "settings": asdict(arm),
        "evaluations": {
            name: [None if v != v else v for v in getattr(run, name).tolist()] for name in evaluated
        },
        "updates": {name: getattr(signals, name).tolist() for name in SIGNALS}
        | {"selection": signals.selection, "filtered": signals.filtered},
    }


TARGETS = (0.5, 0.6, 0.7)


def judged(fitted: Fit) -> list[Judged]:
    """The committed runs, by the law of the campaign's own runs from that warm start. fitted: to
    the campaign's runs of the task."""
    law = law_of(fitted, f"{TASK}-w{WARM}", "", prior())
    runs = curves(rows(WHOLE))
    start = sum(float(run.accuracy[0]) for run in runs) / len(runs)
    return [one for run in runs for one in judge(law, run, start, 1.0, TARGETS)]


def table(found: Sequence[Judged]) -> list[dict[str, Any]]:
    """One row a policy; times are to the middle target."""
    policies = {arm.name: arm.policy for arm, _ in REPEATED}
    return [
        {
            "policy": policies[name],
            "runs": len({one.run.name for one in own}),
            "time": means(own, "time", TARGETS[1]),
            "area": means(own, "area"),
            "last": means(own, "last"),
            "age": sum(float(np.mean(one.run.signals.age)) for one in own) / len(own),
        }
        for name, own in by_policy(found).items()
    ]
