"""Warm starts: imitation until the model can do the task sometimes."""

import random
from pathlib import Path

import torch
from torch.nn import functional

from benchmarks.learning.model import Decoder, Model, encode
from benchmarks.learning.sampling import Row, Sampler
from benchmarks.learning.tasks import EVALUATED, TASKS, Task

RATE, BATCH, LOOK, MOST = 2e-3, 96, 25, 3000


def new_model(task: Task) -> Model:
    """A model with room for a prompt and the longest response."""
    return Model(task.width + task.longest)


def held_out(task: Task) -> list[tuple[str, str]]:
    """The prompts that every evaluation uses."""
    draw = random.Random(99)
    return [task.prompt(draw) for _ in range(EVALUATED)]


def evaluate(model: Model, task: Task, seed: int = 7) -> dict[str, float]:
    """Accuracy at temperature 1 on the held-out prompts, and mean tokens of right and of wrong
    responses (nan where there is none)."""
    rows = [Row(*prompt) for prompt in held_out(task)]
    sampler = Sampler(task, Decoder(model, len(rows)), len(rows), seed)
    sampler.start(rows)
    while sampler.slots:
        for slot in sampler.step(0):
            sampler.stop(slot)
    tokens = {True: [], False: []}  # type: dict[bool, list[int]]
    for row in rows:
        tokens[task.reward(row.answer, row.text) > 0].append(row.tokens)
    return {
        "accuracy": len(tokens[True]) / len(rows),
        "right_tokens": _mean(tokens[True]),
        "wrong_tokens": _mean(tokens[False]),
    }


def _mean(values: list[int]) -> float:
    return sum(values) / len(values) if values else float("nan")


def warm_start(name: str, seed: int, folder: Path) -> Model:
    """The model of a task's warm start, made where ``folder`` does not have it."""
    task, path = TASKS[name], folder / f"{name}_{seed}.pt"
    torch.manual_seed(seed)
    model = new_model(task)
    if path.exists():
        model.load_state_dict(torch.load(path))
        return model
    draw = random.Random(1000 + seed)
    optimiser = torch.optim.AdamW(model.parameters(), RATE, weight_decay=0.01)
    for step in range(1, MOST + 1):
        _imitate(model, task, optimiser, draw)
        if step % LOOK == 0 and evaluate(model, task)["accuracy"] >= task.start:
            break
    folder.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".partial")
    torch.save(model.state_dict(), draft)
    draft.replace(path)
    return model


def _imitate(
    model: Model, task: Task, optimiser: torch.optim.Optimizer, draw: random.Random
) -> None:
    """One step on demonstrations."""
    shown = [task.demonstration(draw) for _ in range(BATCH)]
    width = model.places
    codes = torch.tensor([_padded(encode(prompt + said), width) for prompt, said, _ in shown])
    marks = [_padded([0] * task.width + [*map(int, who)], width) for _, _, who in shown]
    counts = torch.tensor(marks, dtype=torch.float32)[:, 1:]
    losses = functional.cross_entropy(
        model(codes[:, :-1]).transpose(1, 2), codes[:, 1:], reduction="none"
    )
    optimiser.zero_grad()
    ((losses * counts).sum() / counts.sum()).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimiser.step()


def _padded(codes: list[int], width: int) -> list[int]:
    return codes + [0] * (width - len(codes))
