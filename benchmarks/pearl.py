"""Published figures of agentic RL, as far as they can be set up: ``python -m benchmarks.pearl``.

PEARL (2026-09) reports of SWE-bench on H800, with groups of 16, batches of 64, contexts of 32k and
a staleness of 1: with unlimited rollout GPUs a rollout phase takes 216 s and training 164 s; 24
rollout GPUs in place of 16 shorten it by 10.3 %, 32 by a further 8.9 %; of the tokens of all
requests 3.3 % are sampled. Neither the model, nor the trainer's GPUs, nor what sandboxes take is
known here, so three models are run, with the preset of turns ``swe`` as it stands, and 16 GPUs of
a trainer. Nothing is fitted to the figures: what is missed is as much a result as what is met.

Writes ``benchmarks/results/pearl.md``.
"""

import statistics
from collections.abc import Mapping
from itertools import product
from typing import Any, NamedTuple

from benchmarks.runner import RESULTS, parser, read_json, simulated, write_json, write_text

PAGE = RESULTS / "pearl.md"
KEPT = PAGE.with_suffix(".json")
MODELS = {"qwen3-8b": 1, "qwen3-14b": 1, "qwen3-32b": 4}
"""Models, and the tensor-parallel degree of a replica."""
GPUS = (16, 24, 32, 256)
"""Of rollout; the last are as good as unlimited."""
BATCHES = {"rollouts": 4, "groups": 64}
"""What 64 are a batch, and how many groups that is."""
ANSWERS: dict[str, Any] = {"tail": {"preset": "swe"}, "0.28 s": 0.28}
"""Seconds of an answer: the preset with its assumed tail; its published median, always."""
TRAINER_GPUS = 16
SEEDS = {4: 3, 64: 1}
"""By groups of a batch."""


class Found(NamedTuple):
    """Means over steps and seeds, seconds; the share of all requests' tokens that was sampled."""

    rollout_s: float
    train_s: float
    sampled: float


def scenario(model: str, gpus: int, groups: int, answers: Any, seed: int) -> dict[str, Any]:
    """One of the set-ups."""
    degree = MODELS[model]
    return {
        "model": model,
        "gpu": "h800-sxm",
        "cluster": {
            "placement": "disaggregated",
            "replicas": max(gpus // degree, 1),
            "tensor_parallel": degree,
            "trainer_gpus": TRAINER_GPUS,
            "routing": "session_affinity",
        },
        "engine": {"max_seqs": 128, "max_batched_tokens": 8192},
        "workload": {
            "batch_groups": groups,
            "group_size": 16,
            "prompt_tokens": {"median_tokens": 2500, "sd": 0.5, "max_tokens": 8000},
            "max_new_tokens": 4096,
            "max_context_tokens": 32768,
            "turns": {"preset": "swe"},
        },
        "environment": {"turn_s": answers, "timeout_s": 600},
        "policy": "sync",
        "steps": 2 if groups < 64 else 1,
        "seed": seed,
    }


def measured(model: str, gpus: int, groups: int, answers: Any) -> Found:
    """What a set-up comes to."""
    rollout, train, sampled = [], [], []
    for seed in range(SEEDS[groups]):
        given = scenario(model, gpus, groups, answers, seed)
        result = simulated(**given)
        run, summary = result.run, result.summary
        rollout += [record.rollout_s for record in run.steps]
        train += [record.train_s for record in run.steps]
        turns = summary["turns"]
        requests = turns["context_tokens_mean"] * turns["turns_mean"] / 2.0
        sampled.append(summary["generated_tokens"] / summary["rollouts"] / requests)
    return Found(statistics.mean(rollout), statistics.mean(train), statistics.mean(sampled))


def main() -> None:
    """Runs what is asked for, keeps it beside what was run before, and writes the page of all."""
    options = parser(__doc__)
    options.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    options.add_argument("--batches", nargs="+", default=list(BATCHES), choices=list(BATCHES))
    given = options.parse_args()
    kept = read_json(KEPT, {})
    for batch, (answers, turn_s), model in product(given.batches, ANSWERS.items(), given.models):
        by_gpus = {g: measured(model, g, BATCHES[batch], turn_s) for g in GPUS}
        kept[f"{batch}, {answers}, {model}"] = {str(g): list(f) for g, f in by_gpus.items()}
        print(batch, answers, _row(model, by_gpus), flush=True)
        write_json(KEPT, kept)
    write_text(PAGE, page(kept))


def page(kept: Mapping[str, Any]) -> str:
    """The results in tables, one a reading of the set-up that was run."""
    lines = [_HEAD]
    for batch, answers in product(BATCHES, ANSWERS):
        known = {model: kept.get(f"{batch}, {answers}, {model}") for model in MODELS}
        rows = [
            _row(model, {int(g): Found(*figures) for g, figures in by_gpus.items()})
            for model, by_gpus in known.items()
            if by_gpus
        ]
        if rows:
            lines += [f"\n## 64 {batch}; {_ANSWERS[answers]}\n", *_TABLE, *rows]
    return "\n".join(lines) + "\n"


_ANSWERS = {
    "tail": "answers as the preset has them, of 0.28 s in the median with a tail",
    "0.28 s": "every answer takes 0.28 s",
}
_TABLE = [
    "| model | rollout, s: 16 GPUs | 24 | 32 | unlimited | training, s "
    "| rollout over training (16) | tokens sampled, % |",
    "|---|---|---|---|---|---|---|---|",
    "| *PEARL* | | *-10.3 %* | *a further -8.9 %* | *216* | *164* | *4.5 to 5.7* | *3.3* |",
]


def _row(model: str, by_gpus: dict[int, Found]) -> str:
    base, last = by_gpus[16], by_gpus[GPUS[-1]]
    shorter = []
    for before, gpus in ((16, 24), (24, 32)):
        now_s = by_gpus[gpus].rollout_s
        shorter.append(f"{now_s:.0f} ({now_s / by_gpus[before].rollout_s - 1:+.1%})")
    cells = [
        model,
        f"{base.rollout_s:.0f}",
        *shorter,
        f"{last.rollout_s:.0f}",
        f"{base.train_s:.0f}",
        f"{base.rollout_s / base.train_s:.1f}",
        f"{100 * base.sampled:.1f}",
    ]
    return "| " + " | ".join(cells) + " |"


_HEAD = f"""# PEARL's figures of SWE-bench, as far as they can be set up

`python -m benchmarks.pearl`. PEARL (2026-09) trains on SWE-bench with groups of 16, batches of 64,
contexts of 32k and a staleness of 1, on H800. What it states stands in each table's first row.

Assumed: the model (three are run), {TRAINER_GPUS} GPUs of a trainer, the preset of turns `swe`, as
many sandboxes as anybody wants and no boot, costs from presets, session affinity. "A batch of 64"
may mean rollouts or groups, and nothing is known of the sandboxes' times: each is run both ways.
Seeds: 3 of two steps, of 64 groups one of one. "Unlimited" is {GPUS[-1]} GPUs. Nothing was fitted
to the figures. Steps are synchronous: training has GPUs of its own, so that a bound on staleness
would change what overlaps, and hardly what a phase of rollouts takes. The share sampled is of the
tokens of all requests, each with its whole context."""

if __name__ == "__main__":
    main()
