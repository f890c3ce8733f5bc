"""The campaign's table: what each run changes against the synchronous one."""

from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.learning.tasks import TASKS


@dataclass(frozen=True)
class Arm:
    """What is varied. groups, size: of a batch. rate: multiple of the task's learning rate.
    train_s: seconds of an update, in engine iterations. prompts: of the data set; None: no end.
    cap: most tokens of a response while training; None: the task's. mask: whether responses that
    were cut there are masked in the loss."""

    name: str
    policy: str = "sync"
    groups: int = 12
    size: int = 8
    rate: float = 1.0
    minibatches: int = 1
    train_s: float = 8.0
    prompts: int | None = None
    cap: int | None = None
    mask: bool = False


@dataclass(frozen=True)
class Setup:
    """A run of the campaign. warm, seed: numbers of the warm start and of the run. length: multiple
    of the task's updates."""

    task: str
    arm: Arm
    warm: int
    seed: int
    length: int = 1

    @property
    def name(self) -> str:
        """Of its file."""
        return f"{self.task}-{self.arm.name}-w{self.warm}-s{self.seed}"


SLOW, FAST = 24.0, 3.0  # seconds of an update, in iterations; a response has at most nine

ARMS = (
    Arm("sync"),
    Arm("lr-half", rate=0.5),
    Arm("lr-double", rate=2.0),
    Arm("size-4", groups=24, size=4),
    Arm("size-16", groups=6, size=16),
    Arm("rollouts-48", groups=6),
    Arm("rollouts-192", groups=24),
    Arm("minibatches-2", minibatches=2),
    Arm("minibatches-4", minibatches=4),
    Arm("stale-1", "one_step_off"),
    Arm("stale-2", "fully_async(max_staleness=2)", train_s=SLOW),
    Arm("stale-4", "fully_async(max_staleness=4)", train_s=SLOW),
    Arm("stale-8", "fully_async(max_staleness=8)", train_s=SLOW),
    Arm("stale-4-lr-double", "fully_async(max_staleness=4)", train_s=SLOW, rate=2.0),
    Arm("interrupted", "fully_async(max_staleness=4)", train_s=FAST),
    Arm("in-flight", "pipeline_rl", train_s=FAST),
    Arm("in-flight-queue", "pipeline_rl(in_flight=2)", train_s=SLOW),
    Arm("april-1.5", "april(over_sampling=1.5)"),
    Arm("april-2", "april(over_sampling=2)"),
    Arm("budget-4", "token_budget(tokens=4)"),
    Arm("tail-batching", "tail_batching"),
    Arm("pods-4-of-8", "pods(keep=4)"),
    Arm("pods-8-of-16", "pods(keep=8)", size=16),
    Arm("pods-4-of-16", "pods(keep=4)", size=16),
    Arm("pods-8-of-32", "pods(keep=8)", groups=6, size=32),
    Arm("pods-4-of-16-random", "pods(keep=4, rule=random)", size=16),
    Arm("pods-4-of-16-reward", "pods(keep=4, rule=max_reward)", size=16),
    Arm("pods-4-of-16-percentile", "pods(keep=4, rule=percentile)", size=16),
    Arm("pods-before", "pods(keep=4, advantages=before_selection)", size=16),
    Arm("filter", "dynamic_sampling"),
    Arm("filter-size-4", "dynamic_sampling", groups=24, size=4),
    Arm("sagc", "sagc"),
    Arm("difficulty", "difficulty", prompts=96),
    Arm("few-prompts", prompts=96),
    Arm("april-pods", "april(over_sampling=2)+pods(keep=4)", size=16),
    Arm("rollouts-384", groups=48),
    Arm("stale-4-pods", "fully_async(max_staleness=4)+pods(keep=4)", size=16, train_s=SLOW),
)
EDGES = (
    Arm("lr-quadruple", rate=4.0),
    Arm("stale-16", "fully_async(max_staleness=16)", train_s=SLOW),
    Arm("stale-8-lr-double", "fully_async(max_staleness=8)", train_s=SLOW, rate=2.0),
    Arm("stale-8-lr-quadruple", "fully_async(max_staleness=8)", train_s=SLOW, rate=4.0),
    Arm("stale-16-lr-quadruple", "fully_async(max_staleness=16)", train_s=SLOW, rate=4.0),
)
"""Arms that may no longer learn: they say where the law ends, and it is not fitted to them."""
BY_LENGTH = (
    Arm("tail-batching-more", "tail_batching(over_sampling=1.5, rollouts=1.5)"),
    Arm("tail-batching-most", "tail_batching(over_sampling=1, rollouts=2)"),
    Arm("cap-5", cap=5),
    Arm("cap-5-masked", cap=5, mask=True),
    Arm("cap-6", cap=6),
    Arm("cap-6-masked", cap=6, mask=True),
)
"""Arms whose policy, or whose cap, chooses by length: their runs say how lengths react to that."""
FEW_STARTS = 2  # warm starts of `EDGES` and `BY_LENGTH`
WARM_STARTS = 3
FURTHER = (
    *("sync", "lr-half", "lr-double", "size-4", "size-16", "stale-1", "stale-4", "stale-8"),
    *("april-2", "pods-4-of-16", "pods-8-of-32", "filter", "rollouts-48", "minibatches-2"),
)
"""Arms that have one warm start more."""
MORE_SEEDS = ("sync", "stale-4", "pods-4-of-16")
"""Arms with further seeds, which say what noise alone does."""
LONG_RUNS = ("sync", "stale-8", "pods-4-of-16")
"""Arms that run on until accuracy hardly rises, which say where a policy ends."""
LONG, LONG_SEED = 3, 9


def setups() -> Iterator[Setup]:
    """Every run, in the order in which they are made: whole tables of one warm start first."""
    named = {arm.name: arm for arm in ARMS}
    few = range(FEW_STARTS)
    tables = [(warm, arm) for warm in range(WARM_STARTS) for arm in ARMS]
    tables += [(warm, arm) for warm in few for arm in EDGES]
    tables += [(WARM_STARTS, named[name]) for name in FURTHER]
    tables += [(warm, arm) for warm in few for arm in BY_LENGTH]
    for warm, arm in tables:
        for task in TASKS:
            if arm.cap is None or arm.cap > TASKS[task].shortest:
                yield Setup(task, arm, warm, 0)
    for warm in range(WARM_STARTS):
        for task in TASKS:
            for name in MORE_SEEDS:
                yield from (Setup(task, named[name], warm, seed) for seed in (1, 2))
            for name in LONG_RUNS if warm in few else ():
                yield Setup(task, named[name], warm, LONG_SEED, LONG)
