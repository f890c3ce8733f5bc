"""How an update is dealt out, one sequence after another: slow, and as it is said in words."""

from collections.abc import Sequence

import numpy as np

from rollcast.simulator.costs import TrainLoad
from rollcast.simulator.costs.trainer.dealing import Dealing
from rollcast.simulator.costs.trainer.packing import Work, Works, near_pairs, pad


def works_of(works: Sequence[Work]) -> Works:
    """The columns of single ones."""
    columns = list(zip(*works, strict=True)) or [()] * len(Works._fields)
    kinds = (np.int64, np.int64, np.float64, np.float64, np.int64)
    return Works._make(np.array(*column) for column in zip(columns, kinds, strict=True))


def dense_work(prompt_tokens: int, response_tokens: int, window: int = 0) -> Work:
    """A rollout on its own: P + S tokens, (P + S)^2 / 2 pairs."""
    tokens = prompt_tokens + response_tokens
    near = near_pairs(0, tokens, window) if window else 0.0
    return Work(tokens, response_tokens, tokens * tokens / 2, near)


def packed(works: Sequence[Work], budget_tokens: int, most_rows: int) -> list[Work]:
    """In order, as many together as the budget and the rows allow."""
    batches: list[list[Work]] = []
    for work in works:
        last = batches[-1] if batches else []
        tokens = sum(one.tokens for one in last) + work.tokens
        if last and tokens <= budget_tokens and not len(last) == most_rows > 0:
            last.append(work)
        else:
            batches.append([work])
    return [Work(*map(sum, zip(*batch, strict=True))) for batch in batches]


def dealt(dealing: Dealing, load: TrainLoad, budget_tokens: int) -> list[list[Work]]:
    """Microbatches of each GPU of a load without shared prefixes."""
    taught = [(prompt, response) for prompt, group in load.groups for response in group]
    widest = max((p for p, _ in taught), default=0), max((r for _, r in taught), default=0)
    if dealing.batching == "padded_to_cap":
        widest = widest[0], max(widest[1], dealing.capped - widest[0])
    widest = max(dealing.prompt, widest[0]), widest[1]
    works = [dense_work(*one, dealing.window) for one in taught]
    if dealing.padded_logits:
        works = [work._replace(padding=sum(widest) - work.head_tokens) for work in works]
    mine: list[list[int]] = [[] for _ in range(min(dealing.gpus, max(1, len(works))))]
    if dealing.balanced:
        for job in sorted(range(len(works)), key=lambda job: -works[job].tokens):
            held = [sum(works[one].tokens for one in jobs) for jobs in mine]
            mine[held.index(min(held))].append(job)
    else:
        for job in range(len(works)):
            mine[job % len(mine)].append(job)
    if dealing.batching != "packed":
        mine = [sorted(jobs) for jobs in mine]
    rows = [[works[job] for job in jobs] for jobs in mine]
    if dealing.batching == "one_sequence":
        return rows
    if dealing.batching == "packed":
        return [packed(one, budget_tokens, dealing.rows) for one in rows]
    least = (dealing.prompt, 0) if dealing.batching == "padded" else widest
    return [
        pad(works_of(one), budget_tokens, dealing.rows or len(one), least, dealing.window)
        for one in rows
    ]
