"""Teaches the built-in model the Collatz task by imitation, once, and keeps the result:
reinforcement learning needs a model that is sometimes right. Training takes four minutes on one
core; the checkpoint is kept under a hash of its recipe. The weights of the recipe that everybody
uses come with the package."""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

from rollcast.engine.quiet import no_bars
from rollcast.engine.tasks import calculator, collatz, tokenizer
from rollcast.engine.tasks.model import build_model
from rollcast.simulator.cli.stopping import progress_bar

if TYPE_CHECKING:
    import torch

Progress = Callable[[int, int, float], None]
"""``(step, steps, loss)`` after every step."""


class Lesson(NamedTuple):
    """A prompt and a response; taught: whether each token is the model's."""

    token_ids: list[int]
    taught: list[bool]


_REVISION = 1  # bumped when the code below trains differently by the same recipe
_TAUGHT = Path(__file__).with_name("taught")
"""Weights of recipes in float16, by the recipe's name: a recipe that changes is trained anew."""
_POOL_BATCHES = 64
_DONE = "warm_start.json"


@dataclass(frozen=True, slots=True)
class Recipe:
    """How the model is trained; its hash names the checkpoint. steps: optimiser steps,
    ``warmup_steps`` included, then a cosine to zero. batch_tokens: padded tokens in a batch of
    responses of similar length. slip: the teacher's probability of a wrong step. style: of prompts;
    ``worded`` and ``calculator`` train as ``bare`` first, then for ``adaptation_steps`` with the
    instruction, or on conversations."""

    style: str = "bare"
    steps: int = 2000
    adaptation_steps: int = 500
    batch_tokens: int = 2048
    learning_rate: float = 2e-3
    adaptation_rate: float = 1e-3
    warmup_steps: int = 50
    weight_decay: float = 0.05
    slip: float = 0.06
    seed: int = 0

    @property
    def name(self) -> str:
        """The folder of the checkpoint."""
        content = asdict(self)
        if self.style == "bare":
            del content["adaptation_steps"], content["adaptation_rate"]
        content["instruction"] = collatz.instruction(self.style)
        text = json.dumps([_REVISION, content], sort_keys=True)
        return f"collatz-{self.style}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def cache_folder() -> Path:
    """Where checkpoints are kept: ``ROLLCAST_CACHE``, or rollcast in the user's cache folder."""
    if chosen := os.environ.get("ROLLCAST_CACHE"):
        return Path(chosen).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "rollcast"


def warm_start(
    recipe: Recipe | None = None,
    *,
    folder: Path | None = None,
    threads: int = 1,
    progress: Progress | None = None,
) -> Path:
    """The folder of the warm-started model and tokenizer, made now if it is missing: of weights
    that come with the package, else by training. It is renamed into place once whole. progress:
    None: a bar on a terminal. Reproducible on one machine with the same number of threads."""
    recipe = recipe or Recipe()
    folder = cache_folder() if folder is None else folder
    place = folder / recipe.name
    if (place / _DONE).is_file():
        return place
    base = None
    if recipe.style != "bare":
        bare = replace(recipe, style="bare")
        base = warm_start(bare, folder=folder, threads=threads, progress=progress)
    folder.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{recipe.name}-", dir=folder))
    try:
        began = time.perf_counter()
        model, losses = _taught(recipe.name), list[float]()
        if model is None:
            with _threads(threads), _reporting(progress) as report:
                model, losses = _train(recipe, base, report)
        with no_bars():
            model.save_pretrained(draft)
        tokenizer.build_tokenizer().save_pretrained(draft)
        record = asdict(recipe) | {
            "seconds": round(time.perf_counter() - began, 1),
            "threads": threads,
            "loss": [round(loss, 4) for loss in losses[:: max(1, len(losses) // 100)]],
        }
        (draft / _DONE).write_text(json.dumps(record, indent=1) + "\n")
        try:
            draft.rename(place)
        except OSError:  # another process was faster, with the same result
            if not (place / _DONE).is_file():
                raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return place


def _taught(name: str) -> Any:
    """The model of a recipe whose weights come with the package; None of another."""
    from safetensors.torch import load_file

    weights = _TAUGHT / f"{name}.safetensors"
    if not weights.is_file():
        return None
    model = build_model()
    model.load_state_dict({key: half.float() for key, half in load_file(weights).items()})
    return model.eval()


def _train(recipe: Recipe, base: Path | None, report: Progress) -> tuple[Any, list[float]]:
    import torch
    from transformers import Qwen3ForCausalLM

    adapting = base is not None
    model: Any
    with no_bars():
        model = Qwen3ForCausalLM.from_pretrained(base) if adapting else build_model(recipe.seed)
    model.train()
    steps = recipe.adaptation_steps if adapting else recipe.steps
    rate = recipe.adaptation_rate if adapting else recipe.learning_rate
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=rate, betas=(0.9, 0.98), weight_decay=recipe.weight_decay
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: _rate_factor(step, steps, recipe.warmup_steps)
    )
    preamble = tokenizer.encode(collatz.instruction(recipe.style))
    batches, losses = _batches(recipe, adapting), list[float]()
    for step in range(1, steps + 1):
        loss: Any = _loss(model, preamble, next(batches))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
        report(step, steps, losses[-1])
    return model.eval(), losses


def _rate_factor(step: int, steps: int, warmup_steps: int) -> float:
    """Linear to 1 over the warm-up, then half a cosine to 0."""
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    return 0.5 * (1 + math.cos(math.pi * (step - warmup_steps) / max(1, steps - warmup_steps)))


def _lessons(recipe: Recipe, adapting: bool, rng: Random) -> Iterator[Lesson]:
    """Lessons of one number after the other."""
    starts = collatz.starts_for(False)
    while True:
        start = starts.draw(rng)
        prompt = tokenizer.encode(f"{start}>")
        if adapting and recipe.style == "calculator":
            response, taught = calculator.teacher_response(start, rng, recipe.slip)
        else:
            text = collatz.teacher_response(start, rng, recipe.slip)
            response = [*tokenizer.encode(text), tokenizer.END_ID]
            taught = [True] * len(response)
        yield Lesson([*prompt, *response], [*([False] * len(prompt)), *taught])


def _batches(recipe: Recipe, adapting: bool) -> Iterator[list[Lesson]]:
    """Batches of lessons of similar length, in random order."""
    rng = Random(f"warm start {recipe.seed} {adapting}")
    lessons = _lessons(recipe, adapting, rng)
    while True:
        pool: list[Lesson] = []
        tokens = 0
        while tokens < _POOL_BATCHES * recipe.batch_tokens:
            pool.append(next(lessons))
            tokens += len(pool[-1].token_ids)
        pool.sort(key=lambda lesson: len(lesson.token_ids))
        batches: list[list[Lesson]] = [[]]
        for lesson in pool:  # the longest comes last, so it sets the padded width
            width = len(lesson.token_ids)
            if batches[-1] and width * (len(batches[-1]) + 1) > recipe.batch_tokens:
                batches.append([])
            batches[-1].append(lesson)
        rng.shuffle(batches)
        yield from batches


def _loss(model: Any, preamble: list[int], batch: list[Lesson]) -> torch.Tensor:
    """Mean cross-entropy of the taught tokens. The preamble is computed once for the batch."""
    import torch

    width = max(len(lesson.token_ids) for lesson in batch)
    ids = torch.full((len(batch), width), tokenizer.PAD_ID)
    targets = torch.full((len(batch), width), -100)
    for row, lesson in enumerate(batch):
        tokens, taught = torch.tensor(lesson.token_ids), torch.tensor(lesson.taught)
        ids[row, : len(tokens)] = tokens
        targets[row, : len(tokens)] = torch.where(taught, tokens, -100)
    shared = None
    if preamble:
        shared = model(input_ids=torch.tensor([preamble]), use_cache=True).past_key_values
        shared.batch_repeat_interleave(len(batch))
    # Padding stands at the end, where causal attention keeps it from everything that counts.
    logits = model(input_ids=ids, past_key_values=shared, use_cache=shared is not None).logits
    return torch.nn.functional.cross_entropy(
        logits[:, :-1].flatten(0, 1), targets[:, 1:].flatten(), ignore_index=-100
    )


@contextmanager
def _threads(count: int) -> Iterator[None]:
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def _reporting(progress: Progress | None) -> Iterator[Progress]:
    if progress is not None:
        yield progress
        return
    with progress_bar("", None, elapsed=False, left=True, text="warm start") as update:

        def show(step: int, steps: int, loss: float) -> None:
            if update is not None:
                update(completed=step, total=steps, text=f"warm start, loss {loss:.2f}")

        yield show
