"""The 90 % intervals of forecasts, by the draws that `rollcast simulate --draws` makes."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np

from rollcast.simulator.costs import CostModel, Iteration, RooflineTrainer, TrainLoad
from rollcast.simulator.costs.roofline.draws import drawn_gpu, times, trainer_spreads
from rollcast.simulator.studies.drawn import ends
from rollcast.simulator.values.chance import Drawn

DRAWS = 40


@cache
def drawn(cost: CostModel, draws: int = DRAWS) -> tuple[CostModel, ...]:
    """The cost model drawn anew, the same draws each time it is asked."""
    return tuple(cost.drawn(Drawn(np.random.default_rng(seed))) for seed in range(draws))


def interval(
    forecast: float, cost: CostModel, seconds: Callable[[CostModel], float]
) -> tuple[float, float]:
    """The ends of the middle 90 % of a forecast that grows with ``seconds`` of ``cost``."""
    low, high = ends([seconds(other) / seconds(cost) for other in drawn(cost)]).tolist()
    return forecast * low, forecast * high


def iteration_s(cost: CostModel, work: Iteration) -> float:
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


def trainer_interval(trainer: RooflineTrainer, load: TrainLoad, draws: int) -> tuple[float, float]:
    """The ends of the middle 90 % of the seconds of an update whose uncertain figures are
    drawn anew, as `rollcast compare` draws them."""
    chance, spreads = Drawn(np.random.default_rng(0)), trainer_spreads(trainer.kernels)
    seconds = []
    for _ in range(draws):
        changed = times(trainer, spreads, chance)
        other = replace(trainer, gpu=drawn_gpu(trainer.gpu, chance), **changed)
        seconds.append(other.train(load).total_s)
    low, high = np.quantile(seconds, [0.05, 0.95])
    return float(low), float(high)
