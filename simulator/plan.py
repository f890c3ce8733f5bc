"""The plan of one step: frozen data with one place for each decision that a policy can take.

Policies rewrite it (`simulator.policy`), the loop carries it out (`simulator.loop`). Everything in
it is a count, a share or a rule over counts and rewards, so that a plan means the same in every
world and can be logged and compared.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass
from typing import Any, Literal, NamedTuple, Protocol

from rollcast.simulator.errors import ScenarioError

Interrupt = Literal["at_stop", "for_weights", "never"]
Unfinished = Literal["discard", "resume", "restart"]
Take = Literal["completion", "oldest", "shortest"]
Order = Literal["fifo", "longest_first", "shortest_first"]
Placement = Literal["router", "balanced"]
Exceeded = Literal["restart", "drop", "wait", "capacity"]
Failed = Literal["keep", "restart"]
Surplus = Literal["carry", "train", "drop", "restart"]
Layout = Literal["dense", "shared_prefix"]
Advantages = Literal["after_selection", "before_selection"]


@dataclass(frozen=True, slots=True)
class Batch:
    """How many groups a step trains on, and how many rollouts each has."""

    groups: int
    group_size: int

    @property
    def rollouts(self) -> int:
        """Rollouts per step, B x G."""
        return self.groups * self.group_size

    def with_group_size(self, group_size: int) -> Batch:
        """The same rollouts per step in groups of another size. Raises ScenarioError unless it
        divides B x G."""
        if self.rollouts % group_size:
            raise ScenarioError(
                "workload.group_size",
                f"{self.rollouts} rollouts per step cannot be dealt into groups of {group_size}; "
                "make batch_groups x group_size a multiple of every candidate size",
            )
        return Batch(self.rollouts // group_size, group_size)


@dataclass(frozen=True, slots=True)
class Launch:
    """What is put in flight.

    over_sampling: groups launched at the start of a step, as a multiple of the batch (one wave);
        with a refill, groups kept in flight, and then it may be below 1.
    rollouts: rollouts launched per group, as a multiple of the group size; the first to finish win.
    source: where a wave's groups come from: the buffer of unfinished groups first (oldest first),
        then fresh prompts; or only one of the two. Where a bound on staleness limits what is
        started, the buffer comes first whatever this says.
    refill: what keeps the number in flight constant: nothing, a new group for each complete group,
        or a new group as soon as finished rollouts have freed enough slots.
    run_ahead: updates by which the step whose rollouts run may be ahead of the weights that they
        run on: 0 is on-policy, 1 trains batch k while batch k + 1 is generated.
    queue: most complete groups that may wait for the trainer, as a multiple of the batch; while as
        many do, nothing is launched. None is no limit.
    """

    over_sampling: float = 1.0
    rollouts: float = 1.0
    source: Literal["buffer_first", "fresh", "buffer"] = "buffer_first"
    refill: Literal["none", "group", "rollout"] = "none"
    run_ahead: int = 0
    queue: float | None = None

    def groups_in_wave(self, batch: Batch) -> int:
        """Groups in a wave, rounded up."""
        return max(1, math.ceil(batch.groups * self.over_sampling - 1e-9))

    def rollouts_per_group(self, group_size: int) -> int:
        """Rollouts launched for a fresh group, rounded up."""
        return math.ceil(group_size * self.rollouts - 1e-9)


class Known(Protocol):
    """What a predictor may ask of a rollout that has not finished."""

    @property
    def prompt(self) -> int:
        """Which prompt it answers."""

    @property
    def new_tokens(self) -> int:
        """Tokens that it has already."""

    @property
    def siblings_tokens(self) -> Sequence[int]:
        """Response lengths of the rollouts of its group that have finished."""

    def oracle_tokens(self) -> int:
        """The truth, where the world can tell. Raises RunError where it cannot."""


class Predictor(Protocol):
    """Expects a response length of a rollout, in tokens; None where it expects nothing."""

    def __call__(self, known: Known) -> float | None:
        """The expected tokens of the whole response."""


@dataclass(frozen=True, slots=True)
class Oracle:
    """Knows every length beforehand: the bound of any predictor. Simulated worlds only."""

    def __call__(self, known: Known) -> float | None:
        """The truth. Raises RunError in a world that cannot tell."""
        return float(known.oracle_tokens())


@dataclass(frozen=True, slots=True)
class GroupProbe:
    """Expects the longest finished sibling; nothing before the first (Seer, arXiv 2511.14617)."""

    def __call__(self, known: Known) -> float | None:
        """The longest sibling so far, and never less than the rollout has."""
        longest = max(known.siblings_tokens, default=None)
        return None if longest is None else float(max(longest, known.new_tokens))


@dataclass(frozen=True, slots=True)
class History:
    """Expects what the same prompt's responses had when it last came (RhymeRL, arXiv 2508.18588).

    tokens: the expected response length by prompt; there may be one for every prompt of a dataset.
    otherwise: that of a prompt which has not come yet; None expects nothing.
    """

    tokens: Mapping[int, float] = field(hash=False)
    otherwise: float | None = None

    def __call__(self, known: Known) -> float | None:
        """The prompt's figure, if it has come before."""
        return self.tokens.get(known.prompt, self.otherwise)

    def described(self) -> dict[str, Any]:
        """For logs: how many prompts there are, and a digest of their figures."""
        figures = repr(sorted(self.tokens.items())).encode()
        return {
            "type": "History",
            "prompts": len(self.tokens),
            "crc32": zlib.crc32(figures),
            "otherwise": self.otherwise,
        }


@dataclass(frozen=True, slots=True)
class Dispatch:
    """In which order launched rollouts go to the replicas, and to which.

    order: by an expected length, which ``predictor`` gives. Rollouts of which nothing is expected
        come first where the longest do (they may be long), the first of each group before the
        second; last where the shortest come first.
    placement: `simulator.world.World.submit`'s.
    window: most rollouts handed to the replicas at once, as a multiple of the slots that they have
        (``engine.max_seqs`` each): the others wait in the driver, where the order may still change.
        None hands over everything at once.
    """

    order: Order = "fifo"
    predictor: Predictor | None = None
    placement: Placement = "router"
    window: float | None = None


@dataclass(frozen=True, slots=True)
class Prompts:
    """Which prompt comes next.

    dataset: how many different prompts there are; once all have come they come again, in the same
        order. None is endless. chosen: prompts to launch first, in this order. skip: prompts that
        are passed over when it is their turn.
    """

    dataset: int | None = None
    chosen: tuple[int, ...] = ()
    skip: frozenset[int] = frozenset()


class Progress(NamedTuple):
    """What a stop rule may look at: complete groups that count, groups needed, rollouts in flight.
    Counts, never seconds: decisions must not hang on a world's clock."""

    accepted_groups: int
    needed_groups: int
    in_flight_rollouts: int


class Stop(Protocol):
    """When the rollout phase ends."""

    def __call__(self, progress: Progress) -> bool:
        """Whether to end the phase now."""


@dataclass(frozen=True, slots=True)
class AllDone:
    """Stop when every rollout in flight has finished."""

    def __call__(self, progress: Progress) -> bool:
        """Whether nothing is in flight."""
        return progress.in_flight_rollouts == 0


@dataclass(frozen=True, slots=True)
class EnoughGroups:
    """Stop as soon as the batch's groups are complete (APRIL, arXiv 2509.18521)."""

    def __call__(self, progress: Progress) -> bool:
        """Whether enough groups count."""
        return progress.accepted_groups >= progress.needed_groups


@dataclass(frozen=True, slots=True)
class Filter:
    """Complete groups to reject, and what is launched in their place.

    rule: says of a group's rewards whether to keep it.
    refill_groups: groups launched when the batch can no longer be filled by what is in flight; None
        is a whole wave.
    refill_when: ``short``, as soon as that is so (slime); ``drained``, once nothing is in flight
        (verl).
    """

    rule: Callable[[Sequence[float]], bool]
    refill_groups: int | None = None
    refill_when: Literal["short", "drained"] = "short"


class Selector(Protocol):
    """Chooses which of a complete group's rollouts to train on."""

    @property
    def keep(self) -> int:
        """How many it keeps."""

    def __call__(self, rewards: Sequence[float], group: int) -> list[int]:
        """The positions kept of these rewards of group number ``group``, rising. Raises
        ScenarioError where ``keep`` exceeds the group."""


@dataclass(frozen=True, slots=True)
class Staleness:
    """How old work may grow, in versions of the weights: updates between the weights that made a
    token and those that it is trained on with.

    max_versions: the bound, None is none. A fraction is rounded up, and bounds the share of a batch
        besides: with 0.5, half a batch may be one version old (verl's staleness_threshold).
    exceeded: what becomes of a group whose oldest token is older than the bound when a step opens,
        wherever it is: in flight, suspended, or complete. Nothing older is ever trained on, but
        with ``capacity``. ``restart``: its tokens are dropped, and its prompt starts from nothing.
        ``drop``: its prompt is lost, too. ``wait``: it does not come to that: no more groups start
        than can be trained on within the bound, and a batch takes, and waits for, those that later
        ones could not take any more (NeMo-RL's fixed target steps); where the plan changes under
        way, it is as with restart. ``capacity``: no more groups start than that, and nothing more:
        AReaL's softer rule (arXiv 2505.24298, equation 3), under which a batch may take younger
        groups first, and the older ones grow older than the bound.
    mask_off_policy: tokens of earlier versions are masked in the loss; their rewards still count.
        The bound counts them as the others.
    """

    max_versions: float | None = None
    exceeded: Exceeded = "restart"
    mask_off_policy: bool = False


@dataclass(frozen=True, slots=True)
class StepPlan:
    """Every decision of one step; the defaults are synchronous RL.

    interrupt: when rollouts in flight are interrupted: at the phase's stop; only for new weights,
        so that they run on while their predecessors are trained on; or never: the weights come in
        while they run, and a response goes on with the keys and values it has. On-policy
        (``launch.run_ahead`` 0) there is nothing to run through, and the stop interrupts.
    unfinished: what becomes of the interrupted: their tokens are dropped; they resume from them; or
        their prompts restart from nothing.
    surplus: of complete groups beyond the batch. take: which of the complete groups make it.
    budget_tokens, budget_turns: tokens that a rollout may sample in one step, and turns that it may
        have; one that has had them waits, unfinished, for the next step, or for the next round if
        the batch cannot be filled without. Between two turns it waits before its environment is
        asked.
    failed: what becomes of a rollout whose environment fails for good, or does not answer in time:
        it counts as complete, with what it earned; or its tokens are dropped, and another one to
        its prompt starts in its place.
    sync_every: updates after which the weights go to the replicas.
    stream_groups: the trainer starts on so many groups as soon as they are ready, and steps once
        the batch is whole; None trains on the whole batch at once. Needs GPUs of its own.
    """

    batch: Batch
    step: int = 0
    launch: Launch = Launch()
    dispatch: Dispatch = Dispatch()
    prompts: Prompts = Prompts()
    stop: Stop = AllDone()
    interrupt: Interrupt = "at_stop"
    unfinished: Unfinished = "discard"
    budget_tokens: int | None = None
    budget_turns: int | None = None
    failed: Failed = "keep"
    surplus: Surplus = "carry"
    take: Take = "completion"
    filter: Filter | None = None
    select: tuple[Selector, ...] = ()
    advantages: Advantages = "after_selection"
    layout: Layout = "dense"
    staleness: Staleness = Staleness()
    sync_every: int = 1
    stream_groups: int | None = None

    @property
    def keeps_running(self) -> bool:
        """Whether rollouts run on while their predecessors are trained on."""
        return self.interrupt != "at_stop" and self.launch.run_ahead > 0

    @property
    def has_budget(self) -> bool:
        """Whether a rollout may come to rest before it is whole."""
        return self.budget_tokens is not None or self.budget_turns is not None

    @property
    def overlaps(self) -> bool:
        """Whether training overlaps with rollout, which takes GPUs of its own."""
        return self.launch.run_ahead > 0 or self.stream_groups is not None

    @property
    def limits_starts(self) -> bool:
        """Whether groups start only if they can be trained on within the staleness bound."""
        staleness = self.staleness
        counts = staleness.exceeded in ("wait", "capacity") or self.keeps_running
        return counts and staleness.max_versions is not None

    def may_start(self, version: int) -> float:
        """Groups that may be outstanding (started and not trained on) on weights of ``version``,
        this step's included: ``(bound + 1 + version - step)`` batches (AReaL, arXiv 2505.24298,
        equation 3); infinite where nothing `limits_starts`."""
        if not self.limits_starts or self.staleness.max_versions is None:
            return math.inf
        batches = self.staleness.max_versions + 1 + version - self.step
        return math.floor(batches * self.batch.groups + 1e-9)

    @property
    def most_versions(self) -> float:
        """The staleness bound as a whole number; infinite without one."""
        bound = self.staleness.max_versions
        return math.inf if bound is None or self.staleness.exceeded == "capacity" else _ceil(bound)

    @property
    def waits_for_the_old(self) -> bool:
        """Whether a batch takes, and waits for, what later ones could not take any more."""
        return self.staleness.exceeded == "wait" and self.staleness.max_versions is not None

    def check(self) -> None:
        """Raises ScenarioError for a plan that contradicts itself."""
        if self.batch.groups < 1 or self.batch.group_size < 1:
            raise ScenarioError("workload.batch_groups", "a step needs at least one group of one")
        per_group = self.launch.rollouts_per_group(self.batch.group_size)
        too_few = self.launch.over_sampling < 1 and self.launch.refill == "none"
        if per_group < self.batch.group_size or too_few or self.launch.over_sampling <= 0:
            raise ScenarioError("policy", "a plan must launch at least what the batch needs")
        size = self.batch.group_size
        for selector in self.select:
            if selector.keep > size:
                raise ScenarioError(
                    getattr(selector, "FIELD", "policy"),
                    f"{type(selector).__name__} keeps {selector.keep} rollouts of a group of "
                    f"{size}; it must be at most the group size, {size}",
                )
            size = selector.keep
        for budget, unit in ((self.budget_tokens, "token"), (self.budget_turns, "turn")):
            if budget is not None and budget < 1:
                raise ScenarioError("policy", f"a rollout's {unit} budget must be at least 1")
        if self.has_budget and (self.interrupt != "at_stop" or self.unfinished == "discard"):
            raise ScenarioError(
                "policy",
                "budget_tokens and budget_turns need interrupt=at_stop and unfinished=resume or "
                "restart",
            )
        if self.sync_every < 1:
            raise ScenarioError("policy", "weights must go to the replicas every 1 or more updates")
        self._check_bound()
        if self.stream_groups is not None and (self.stream_groups < 1 or self.launch.run_ahead):
            raise ScenarioError(
                "policy", "streaming takes at least one group at a time, on-policy (run_ahead 0)"
            )

    def _check_bound(self) -> None:
        bound = self.staleness.max_versions
        if bound is None:
            return
        if bound < 0:
            raise ScenarioError("policy", f"a bound on staleness is at least 0, not {bound:g}")
        if bound < self.sync_every - 1:
            raise ScenarioError(
                "policy",
                f"weights that go to the replicas every {self.sync_every} updates make tokens up "
                f"to {self.sync_every - 1} versions old, beyond the bound on staleness of "
                f"{bound:g}; sync more often, or raise the bound",
            )
        if _ceil(bound) < self.launch.run_ahead:
            raise ScenarioError(
                "policy",
                f"rollouts that run up to {self.launch.run_ahead} updates ahead of the weights are "
                f"so many versions old when they are trained on, beyond the bound on staleness of "
                f"{bound:g}; run no further ahead than it, or raise the bound",
            )


def _ceil(bound: float) -> int:
    return math.ceil(bound - 1e-9)


def describe(value: Any) -> Any:
    """A plan, or any part of one, as plain data that two worlds' decision logs can be compared by:
    dataclasses as mappings that name their class, a `History` by its digest, mappings and sets in
    order of key, everything else as it is."""
    if isinstance(value, History):
        return value.described()
    if is_dataclass(value) and not isinstance(value, type):
        fields = {name: describe(getattr(value, name)) for name in value.__dataclass_fields__}
        return {"type": type(value).__name__, **fields}
    if isinstance(value, Mapping):
        return [[key, describe(item)] for key, item in sorted(value.items())]
    if isinstance(value, frozenset):
        return sorted(value)
    if isinstance(value, list | tuple):
        return [describe(item) for item in value]
    return value
