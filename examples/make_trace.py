"""Makes trace.csv, a synthetic trace: ``python examples/make_trace.py > examples/trace.csv``.

48 prompts of 8 rollouts. Lengths are lognormal (median 1,500 tokens; sd of the log 0.7 between
prompts, 0.35 within a prompt). Prompts have 100 to 600 tokens. Each prompt has its own probability
that a rollout succeeds. Nothing here is measured.
"""

import math
import random
from statistics import NormalDist


def lines(groups: int = 48, size: int = 8, seed: int = 0) -> list[str]:
    """The file's lines, header first."""
    draw, normal = random.Random(seed).random, NormalDist().inv_cdf
    rows = ["group,index,prompt_tokens,new_tokens,reward"]
    for group in range(groups):
        prompt_tokens, success = 100 + int(500 * draw()), draw()
        prompt_log = math.log(1500) + 0.7 * normal(draw())
        for index in range(size):
            new_tokens = math.ceil(math.exp(prompt_log + 0.35 * normal(draw())))
            reward = int(draw() < success)
            rows.append(f"{group},{index},{prompt_tokens},{new_tokens},{reward}")
    return rows


if __name__ == "__main__":
    print("\n".join(lines()))
