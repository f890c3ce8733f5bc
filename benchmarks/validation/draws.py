"""The 90 % intervals of forecasts, by the draws that `rollcast simulate --draws` makes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from rollcast.simulator.costs import CostModel, Iteration
from rollcast.simulator.studies.interval import ends
from rollcast.simulator.values.chance import Drawn

DRAWS = 40


def drawn(cost: CostModel, draws: int = DRAWS) -> tuple[CostModel, ...]:
    """The cost model drawn anew, the same draws each time it is asked."""
    return tuple(cost.drawn(Drawn(np.random.default_rng(seed))) for seed in range(draws))


def interval(
    forecast: float,
    costs: Sequence[CostModel],
    base: CostModel,
    seconds: Callable[[CostModel], float],
) -> tuple[float, float]:
    """The ends of the middle 90 % of a forecast: ``forecast`` times what ``seconds`` is by each of
    ``costs`` over what it is by ``base``. For a forecast that is the seconds themselves, or one
    that grows with them."""
    ratios = [seconds(cost) / seconds(base) for cost in costs]
    low, high = ends(ratios).tolist()
    return forecast * low, forecast * high


def iteration_s(cost: CostModel, work: Iteration) -> float:
    """Seconds of any iteration."""
    if work.prefill_tokens:
        return cost.mixed_iteration_s(work)
    return cost.decode_curve(work.rollouts).seconds(work.context_tokens)


def token_s(cost: CostModel, running: int, prompt: int, output: int) -> float:
    """Seconds between two tokens of a request where ``running`` are always running: an iteration at
    half of the response, and its share of the prompts that others compute meanwhile."""
    context = round(running * (prompt + output / 2))
    decode_s = cost.decode_curve(running).seconds(context)
    pairs = prompt * (prompt + 1) // 2
    with_prompt = Iteration(running, context, prompt, pairs, 1, prompt)
    prompt_s = cost.mixed_iteration_s(with_prompt) - decode_s
    return decode_s + prompt_s * (running - 1) / output
