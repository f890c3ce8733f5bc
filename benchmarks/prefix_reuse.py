"""Prefix reuse against the best dense microbatching of the same rollouts, forward and backward.

    python -m benchmarks.prefix_reuse [--quick] [--out benchmarks/results/prefix_reuse.json]

One thread, a random Qwen3 model, groups of N rollouts with a prompt of P and responses of S tokens.
Both layouts run through the real trainer, in turn, each with several microbatch sizes, and reuse
with prefixes one by one and together; the fastest of each counts. What is reported:

- seconds: CPU seconds of the one thread, the least of the repeats.
- ratio: dense over reuse; share: ratio over the token bound N (P + S) / (P + N S). The work bound
  counts matrix products: the head and attention to the prefix are not shared, and the prefix's
  last layer has next to no backward.
- peak: the most bytes in live tensors during the pass beyond weights and their gradients (whatever
  is saved for backward, and the temporaries of single operations).
"""

import datetime
import os
import time
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from benchmarks.claims.prefix_reuse import bound as token_bound
from benchmarks.runner import parser, write_json
from rollcast.engine.edges import SampledGroup, SampledRollout
from rollcast.engine.options import Checkpoint, TrainerConfig
from rollcast.engine.trainer.trainer import Trainer

SHAPE: dict[str, Any] = {
    "vocab_size": 1024,
    "hidden_size": 256,
    "intermediate_size": 1024,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": False,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
Shape = tuple[int, int, int, int]
"""Prompt tokens, response tokens, rollouts a group, groups."""

TARGET: Shape = (1024, 64, 16, 1)
CURVE: list[Shape] = [
    *((1024, 64, n, 1) for n in (2, 4, 8, 32)),
    *((p, 64, 16, 1) for p in (16, 64, 256, 2048)),
    (1024, 256, 16, 1),
    (256, 256, 4, 1),
    (64, 512, 4, 1),
    (64, 32, 4, 16),
    (6, 48, 8, 16),
    (6, 16, 2, 32),
]
QUICK_CURVE: list[Shape] = [(1024, 64, 4, 1), (256, 64, 16, 1), (256, 256, 4, 1), (6, 16, 2, 32)]


@dataclass(frozen=True, slots=True)
class Plan:
    """One way to compute groups: the layout, rollouts a microbatch, and prefixes a pass."""

    shared: bool
    rows: int
    checkpoint: Checkpoint = "none"
    prefixes: int = 1

    def config(self, prompt: int, response: int) -> TrainerConfig:
        width = response if self.shared else prompt + response - 1
        return TrainerConfig(
            learning_rate=1e-9,
            microbatch_tokens=self.rows * width,
            prefix_microbatch_tokens=self.prefixes * prompt,
            checkpoint=self.checkpoint,
        )


def build() -> Any:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    return Qwen3ForCausalLM(Qwen3Config(**SHAPE))  # type: ignore[no-untyped-call]


def make_groups(shape: Shape) -> list[SampledGroup]:
    prompt, response, rollouts, groups = shape
    generator = torch.Generator().manual_seed(prompt * response + rollouts)

    def tokens(n: int) -> list[int]:
        drawn: list[int] = torch.randint(0, SHAPE["vocab_size"], (n,), generator=generator).tolist()
        return drawn

    made = []
    for _ in range(groups):
        sampled = [
            SampledRollout(tokens(response), [-6.9] * response, [0] * response, float(i % 2))
            for i in range(rollouts)
        ]
        made.append(SampledGroup(tokens(prompt), sampled, [r.reward for r in sampled]))
    return made


class LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Bytes of all tensors that came out of an operation and still live, and their peak."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live: dict[int, int] = {}
        self.now = 0
        self.peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        known = {
            x.untyped_storage()._cdata
            for x in tree_leaves((args, kwargs))
            if isinstance(x, torch.Tensor)
        }
        for x in tree_leaves(out):
            if isinstance(x, torch.Tensor):
                storage = x.untyped_storage()
                key = storage._cdata
                if key not in self.live and key not in known:
                    self.live[key] = storage.nbytes()
                    self.now += storage.nbytes()
                    weakref.finalize(storage, self._free, key)
        self.peak = max(self.peak, self.now)
        return out

    def _free(self, key: int) -> None:
        self.now -= self.live.pop(key, 0)


def passes_only(model: Any, plan: Plan, shape: Shape) -> Trainer:
    """A trainer that computes gradients and leaves the weights alone."""
    trainer = Trainer(model, plan.config(*shape[:2]))
    if plan.shared:
        trainer._passes.prefix_reuse()  # its check on a few tokens is not part of a step
    trainer._apply = lambda work: None  # type: ignore[method-assign]
    return trainer


def run(model: Any, plan: Plan, shape: Shape, groups: Sequence[SampledGroup]) -> float:
    """CPU seconds of forward and backward: with one thread, what a clock shows on an idle machine,
    and hardly disturbed on a busy one."""
    trainer = passes_only(model, plan, shape)
    start_s = time.process_time()
    trainer.step(groups, shared_prefix=plan.shared, version=0)
    return time.process_time() - start_s


def peak_bytes(model: Any, plan: Plan, shape: Shape, groups: Sequence[SampledGroup]) -> int:
    """Peak bytes in live tensors of one step, less the gradients of the weights."""
    trainer = passes_only(model, plan, shape)
    with LiveBytes() as live:
        trainer.step(groups, shared_prefix=plan.shared, version=0)
    gradients = sum(p.numel() * p.element_size() for p in model.parameters())
    return int(live.peak - gradients)


def work_bound(prompt: int, response: int, rollouts: int) -> float:
    """Dense over shared floating-point operations of the passes' matrix products.

    It lies below the token bound where the head and attention to the prefix, which are not shared,
    weigh most. It can lie above: of the prefix's last layer only keys and values are read, so its
    other parts have no backward, which dense training computes (on zeros); 1 / layers of it.
    """
    hidden, layers = SHAPE["hidden_size"], SHAPE["num_hidden_layers"]
    q = SHAPE["num_attention_heads"] * SHAPE["head_dim"]
    kv = SHAPE["num_key_value_heads"] * SHAPE["head_dim"]
    suffix_flop = 2 * (
        2 * hidden * q + 3 * hidden * SHAPE["intermediate_size"]
    )  # a token and layer
    linear = layers * 3 * (suffix_flop + 2 * 2 * hidden * kv)  # forward, and twice that backward
    pair = layers * (4 * q + 10 * q)  # two products forward, five backward
    head = 6 * hidden * SHAPE["vocab_size"] * rollouts * response
    row = prompt + response
    dense = rollouts * (linear * row + pair * row * row / 2) + head
    prefix = linear * prompt + pair * prompt * prompt / 2
    prefix -= 2 * suffix_flop * prompt + 10 * q * prompt * prompt / 2
    suffix = response * linear + pair * (prompt * response + response * response / 2)
    return float(dense / (prefix + rollouts * suffix + head))


def fastest(model: Any, plans: Sequence[Plan], shape: Shape, repeats: int) -> dict[Plan, float]:
    """The least seconds of each plan, all plans run in turn ``repeats`` times."""
    groups = make_groups(shape)
    best: dict[Plan, float] = {}
    for _ in range(repeats):
        for plan in plans:
            seconds = run(model, plan, shape, groups)
            best[plan] = min(seconds, best.get(plan, seconds))
    return best


def candidates(prompt: int, response: int, rollouts: int, groups: int) -> list[Plan]:
    """Microbatches around the sizes that are fast here: 1k to 4k tokens, and single rollouts."""
    plans: list[Plan] = []
    for shared, width in ((False, prompt + response), (True, response)):
        for prefixes in sorted({1, groups if shared else 1}):
            most = rollouts * (prefixes if shared else groups)
            rows = {max(1, min(most, budget // width)) for budget in (1, 1024, 4096)}
            if shared:
                rows -= {1} if len(rows) > 1 and response < 256 else set()
            plans += [Plan(shared, n, prefixes=prefixes) for n in sorted(rows)]
    return plans


def compare(model: Any, shape: Shape, repeats: int) -> dict[str, Any]:
    """One point of the curve."""
    best = fastest(model, candidates(*shape), shape, repeats)
    dense = min((p for p in best if not p.shared), key=best.__getitem__)
    shared = min((p for p in best if p.shared), key=best.__getitem__)
    ratio = best[dense] / best[shared]
    return {
        "prompt_tokens": shape[0],
        "response_tokens": shape[1],
        "rollouts": shape[2],
        "groups": shape[3],
        "dense_s": round(best[dense], 4),
        "dense_rows": dense.rows,
        "reuse_s": round(best[shared], 4),
        "reuse_rows": shared.rows,
        "reuse_prefixes": shared.prefixes,
        "ratio": round(ratio, 3),
        "token_bound": round(token_bound(*shape[:3]), 3),
        "share_of_token_bound": round(ratio / token_bound(*shape[:3]), 3),
        "work_bound": round(work_bound(*shape[:3]), 3),
    }


def memory(model: Any, shape: Shape, repeats: int) -> list[dict[str, Any]]:
    """Seconds and peak of several plans of one group."""
    rollouts = shape[2]
    plans = [Plan(False, 1), Plan(False, 4), Plan(False, rollouts), Plan(False, 1, "all")]
    for checkpoint in sorted({*get_args(Checkpoint)} - {"auto"}):  # which is none on a CPU
        plans += [Plan(True, 4, checkpoint), Plan(True, rollouts, checkpoint)]
    best = fastest(model, plans, shape, repeats)
    groups = make_groups(shape)
    return [
        {
            "layout": "reuse" if plan.shared else "dense",
            "rows": plan.rows,
            "checkpoint": plan.checkpoint,
            "seconds": round(best[plan], 4),
            "peak_mib": round(peak_bytes(model, plan, shape, groups) / 2**20, 1),
        }
        for plan in plans
    ]


def provenance(repeats: int) -> dict[str, Any]:
    import transformers

    return {
        "date": datetime.date.today().isoformat(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "threads": torch.get_num_threads(),
        "cpus": os.cpu_count(),
        "load_average": [round(x, 2) for x in os.getloadavg()],
        "model": SHAPE,
        "dtype": "float32",
        "command": "python -m benchmarks.prefix_reuse",
        "repeats": repeats,
    }


POINT = (
    "P {prompt_tokens:5d}  S {response_tokens:4d}  N {rollouts:3d}  x {groups:2d}   "
    "dense {dense_s:8.3f} s ({dense_rows:3d} rows)   "
    "reuse {reuse_s:7.3f} s ({reuse_rows:2d} rows, {reuse_prefixes} prefixes)   {ratio:5.2f}x "
    "of {token_bound:5.2f}x = {share_of_token_bound:4.0%}   (work bound {work_bound:.2f}x)"
)
PLAN = (
    "{layout:6s} {rows:3d} rows  checkpoint {checkpoint:7s} {seconds:8.3f} s  {peak_mib:8.1f} MiB"
)


def main() -> None:
    """Measures, prints, and writes what ``--out`` asks for."""
    options = parser(__doc__)
    options.add_argument("--quick", action="store_true", help="fewer points, one repeat")
    options.add_argument("--repeats", type=int, help="passes of each plan (2; quick: 1)")
    options.add_argument("--out", type=Path, help="write the results there as JSON")
    given = options.parse_args()
    repeats = given.repeats or (1 if given.quick else 2)
    torch.set_num_threads(1)
    model = build()
    content: dict[str, Any] = {"provenance": provenance(repeats), "curve": [], "memory": []}
    for shape in [TARGET, *(QUICK_CURVE if given.quick else CURVE)]:
        passes = max(repeats, 2) if shape == TARGET else repeats
        content["curve"].append(compare(model, shape, passes))
        print(POINT.format(**content["curve"][-1]), flush=True)
    print(f"\nMemory at P, S, N = {TARGET[:3]}: peak beyond weights and their gradients")
    content["memory"] = memory(model, TARGET, repeats)
    for plan in content["memory"]:
        print(PLAN.format(**plan))
    if given.out:
        write_json(given.out, content)


if __name__ == "__main__":
    main()
