"""Updates of a model on one GPU, by rollcast's own trainer and by the plain way of the stacks."""

import math
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch.nn import functional

import rollcast.engine.trainer.trainer as trainer_module
from benchmarks.gpu.cases import Case
from benchmarks.gpu.ceilings import synchronize
from benchmarks.gpu.models import build, forget
from rollcast.engine.edges import SampledGroup, SampledRollout
from rollcast.engine.trainer.clock import Clock
from rollcast.engine.trainer.passes import Work
from rollcast.engine.trainer.trainer import Trainer

Values = dict[str, Any]
STEPS_S, MOST_STEPS = 1.0, 3
_peaks: dict[str, int] = defaultdict(int)
"""Most bytes allocated within each phase of the clocks below."""


class PeakClock(Clock):
    """A clock that keeps each phase's peak, too."""

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        """See `Clock`."""
        if self.device.type != "cuda":
            with super().__call__(phase):
                yield
            return
        torch.cuda.reset_peak_memory_stats(self.device)
        with super().__call__(phase):
            yield
        _peaks[phase] = max(_peaks[phase], torch.cuda.max_memory_allocated(self.device))


@contextmanager
def _with_peaks() -> Iterator[None]:
    """Trainers within use such clocks."""
    before = trainer_module.Clock  # type: ignore[attr-defined]
    trainer_module.Clock = PeakClock  # type: ignore[misc, attr-defined]
    try:
        yield
    finally:
        trainer_module.Clock = before  # type: ignore[misc, attr-defined]


def groups_of(case: Case) -> list[SampledGroup]:
    """Random tokens, with log-probabilities as of a uniform choice."""
    drawn = torch.Generator().manual_seed(case.prompt + case.response)
    vocabulary = case.spec.vocab

    def tokens(count: int) -> list[int]:
        found: list[int] = torch.randint(0, vocabulary, (count,), generator=drawn).tolist()
        return found

    chance = [-math.log(vocabulary)] * case.response
    made = []
    for _ in range(case.groups):
        rollouts = [
            SampledRollout(tokens(case.response), chance, [0] * case.response, float(i % 2))
            for i in range(case.rollouts)
        ]
        made.append(SampledGroup(tokens(case.prompt), rollouts, [r.reward for r in rollouts]))
    return made


def _own(case: Case, device: torch.device, found: Values) -> Trainer:
    """Our trainer; where its checks of packed rows or of the shared prefix fail by other than a
    refusal, the error is kept, and rows are padded."""
    model = build(case, device)
    config = case.config()
    try:
        trainer = Trainer(model, config)
    except (RuntimeError, TypeError, AttributeError) as error:
        if isinstance(error, torch.OutOfMemoryError):
            raise
        found["packing error"] = repr(error)[:300]
        config = type(config)(**{**_settings(config), "packing": "never"})
        trainer = Trainer(model, config)
    found["packed"] = trainer._passes._packs
    if case.shared:
        trainer._passes.prefix_reuse()  # its check on a few tokens is no part of a step
    return trainer


def _settings(config: Any) -> dict[str, Any]:
    return {name: getattr(config, name) for name in type(config).__dataclass_fields__}


def update(case: Case, device: torch.device) -> Values:
    """Updates by our trainer, one to warm up; seconds of phases, and bytes at their peaks."""
    found: Values = {}
    trainer = _own(case, device, found)
    groups = groups_of(case)
    told: Any = None

    def step() -> dict[str, float]:
        nonlocal told
        told = trainer.step(groups, shared_prefix=case.shared, version=0)
        names = ("forward", "backward", "gradient", "optimizer")
        phases = {f"{name}_s": float(getattr(told, f"{name}_s")) for name in names}
        return {
            **phases,
            "update_s": math.fsum(phases.values()),
            "log_prob_s": float(told.log_prob_s),
        }

    with _with_peaks():
        found |= _steps(step, device)
    for name in ("computed_tokens", "padding_tokens", "microbatches", "mfu", "loss", "grad_norm"):
        found[name] = getattr(told, name)
    return found


def _steps(step: Callable[[], dict[str, float]], device: torch.device) -> Values:
    """Medians of a few steps after a first one, and bytes once a step has been made."""
    found: Values = {}
    began_s = time.perf_counter()
    first = step()
    synchronize(device)
    found["first_step_s"] = time.perf_counter() - began_s
    found["first_update_s"] = first["update_s"]
    _peaks.clear()
    reserved = 0
    rows: list[dict[str, float]] = []
    began_s = time.perf_counter()
    while not rows or (
        len(rows) < MOST_STEPS and (time.perf_counter() - began_s) * (1 + 1 / len(rows)) < STEPS_S
    ):
        one_s = time.perf_counter()
        row = step()
        synchronize(device)
        row["step_s"] = time.perf_counter() - one_s
        rows.append(row)
    for name in rows[0]:
        found[name] = statistics.median(row[name] for row in rows)
    found["update_s of each"] = [row["update_s"] for row in rows]
    if not found.get("log_prob_s"):
        found.pop("log_prob_s", None)
    if device.type == "cuda":
        reserved = torch.cuda.memory_reserved(device)
        free, total = torch.cuda.mem_get_info(device)
        found |= {f"peak {phase} bytes": size for phase, size in _peaks.items()}
        passes = [size for phase, size in _peaks.items() if phase != "optimizer"]
        found["peak_passes_bytes"] = max(passes, default=0)
        found["peak_optimizer_bytes"] = _peaks.get("optimizer", 0)
        found["peak_bytes"] = max(_peaks.values(), default=0)
        found["resting_bytes"] = torch.cuda.memory_allocated(device)
        found["reserved_bytes"] = reserved
        found["used_bytes"] = total - free
    return found


def log_prob(case: Case, device: torch.device) -> Values:
    """The trainer's pass for log-probabilities, without gradients or optimiser states."""
    found: Values = {}
    trainer = _own(case, device, found)
    examples = trainer._examples(groups_of(case), 0, None)

    def step() -> dict[str, float]:
        work = Work(case.shared, PeakClock(device))
        trainer._passes.observe(examples, work, keep=True)
        taken = work.clock.seconds["log_prob"]
        return {"log_prob_s": taken, "update_s": 0.0}

    found |= _steps(step, device)
    return {name: value for name, value in found.items() if not name.startswith("update_s")}


def plain(case: Case, device: torch.device) -> Values:
    """Updates as stacks without fused heads make them: the model's own forward over padded rows,
    all logits in float32, and AdamW over lists of tensors."""
    model = build(case, device)
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=case.config().learning_rate)
    width, rows = case.prompt + case.response, case.rollouts * case.groups
    drawn = torch.Generator().manual_seed(0)
    ids = torch.randint(0, case.spec.vocab, (rows, width), generator=drawn).to(device)
    mask = None
    if case.rows_masked:  # the first of each ten tokens, in every second row
        mask = torch.ones_like(ids)
        mask[::2, : width // 10] = 0
    advantages = torch.tensor([(-1.0) ** i for i in range(rows)], device=device)
    per_pass = max(1, case.microbatch // width)

    def step() -> dict[str, float]:
        clock = PeakClock(device)
        for start in range(0, rows, per_pass):
            part = slice(start, min(rows, start + per_pass))
            given = None if mask is None else mask[part]
            plain_pass(case, model, ids[part], advantages[part] / rows, given, clock)
        with clock("gradient"):
            torch.nn.utils.clip_grad_norm_(parameters, 1.0).item()
        with clock("optimizer"):
            optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        phases = {f"{name}_s": clock.seconds[name] for name in clock.seconds}
        return {**phases, "update_s": math.fsum(phases.values())}

    try:
        with training(case, model):
            return _steps(step, device)
    finally:
        if case.rows_masked:  # rows that see nothing may have made weights that are no numbers
            forget(device)


@contextmanager
def training(case: Case, model: Any) -> Iterator[None]:
    """A model of transformers that is trained within, with the case's checkpoints."""
    if case.checkpoint == "all":
        model.gradient_checkpointing_enable({"use_reentrant": False})
    model.train()
    try:
        yield
    finally:
        if case.checkpoint == "all":
            model.gradient_checkpointing_disable()


def plain_pass(
    case: Case,
    model: Any,
    ids: torch.Tensor,
    advantages: torch.Tensor,
    mask: torch.Tensor | None = None,
    clock: Callable[[str], Any] = lambda _: nullcontext(),
) -> None:
    """Forward and backward of a microbatch, all its logits in float32."""
    cast = torch.autocast(ids.device.type, dtype=torch.bfloat16) if case.autocast else nullcontext()
    with clock("forward"):
        with cast:
            logits = model(input_ids=ids, attention_mask=mask, use_cache=False).logits
        logits = logits.float()[:, case.prompt - 1 : -1]
        targets = ids[:, case.prompt :]
        chosen = -functional.cross_entropy(
            logits.flatten(0, 1), targets.flatten(), reduction="none"
        ).view(targets.shape)
        ratio = (chosen - chosen.detach()).exp()
        loss = -(ratio * advantages[:, None]).sum() / case.response
        del logits
    with clock("backward"):
        loss.backward()


def gradients(case: Case, device: torch.device) -> Values:
    """How far gradients are from those of float32 passes in the dense layout: the norm of the
    difference over the norm."""
    model = build(case, device)
    groups = groups_of(case)
    ways = {
        "dense float32": ("float32", False, "auto"),
        "shared float32": ("float32", True, "auto"),
        "dense bfloat16": ("bfloat16", False, "auto"),
        "padded bfloat16": ("bfloat16", False, "never"),
        "shared bfloat16": ("bfloat16", True, "auto"),
    }
    found: Values = {}
    reference: list[torch.Tensor] = []
    for name, (passes, shared, packing) in ways.items():
        config = _settings(case.config())
        config |= {"autocast": passes == "bfloat16", "packing": packing}
        try:
            trainer = Trainer(model, type(case.config())(**config))
            kept: list[torch.Tensor] = []

            def keep(work: Any, kept: list[torch.Tensor] = kept) -> None:
                kept += [p.grad.detach().clone() for p in model.parameters()]

            trainer._apply = keep  # type: ignore[method-assign]
            began_s = time.perf_counter()
            trainer.step(groups, shared_prefix=shared, version=0)
            found[f"{name} s"] = time.perf_counter() - began_s
        except (RuntimeError, TypeError, ValueError) as error:
            found[f"{name} error"] = repr(error)[:300]
            continue
        if not reference:
            reference = kept
            continue
        pairs = list(zip(kept, reference, strict=True))
        away = math.sqrt(sum(float((a - b).double().square().sum()) for a, b in pairs))
        norm = math.sqrt(sum(float(b.double().square().sum()) for b in reference))
        product = sum(float((a.double() * b.double()).sum()) for a, b in pairs)
        own = math.sqrt(sum(float(a.double().square().sum()) for a in kept))
        found[f"{name} apart"] = away / norm
        found[f"{name} cosine"] = product / (own * norm)
        del trainer, pairs
        kept.clear()
    return found


def weights(case: Case, device: torch.device) -> Values:
    """Seconds in which our trainer's weights reach host memory in bfloat16, for a sync."""
    trainer = Trainer(build(case, device), case.config(), sends="bfloat16")
    turns = []
    for _ in range(2):
        began_s = time.perf_counter()
        moved = sum(t.cpu().nbytes for t in trainer.weights().values())
        synchronize(device)
        turns.append(time.perf_counter() - began_s)
    return {"weights_s": turns[-1], "first_weights_s": turns[0], "moved_bytes": moved}
