"""Workloads replayed from a trace file: of single responses, and of turns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

from rollcast.simulator.core.rollout import CUT, FAILED
from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.values.words import counted
from rollcast.simulator.workload.base import AddressedWorkload, GroupDraw
from rollcast.simulator.workload.environment import EnvironmentSection
from rollcast.simulator.workload.lengths import LARGEST_CAP, LengthModel, whole_tokens
from rollcast.simulator.workload.rewards import ConstantReward, RewardModel
from rollcast.simulator.workload.seconds import DrawnSeconds
from rollcast.simulator.workload.synthetic import SyntheticWorkload
from rollcast.simulator.workload.traces import FIELD, Trace, TracedTurn, TraceGroup
from rollcast.simulator.workload.turns import Caps, Patience, trajectory


class _Replayed(AddressedWorkload):
    """Group g of the run is the g-th group of the trace, and index i its i-th rollout. ``repeat``
    starts over once the groups are used up. A restart (``attempt`` k) of index i gets rollout
    i + k, counted around the group: another response to the same prompt. There is no drift."""

    def __init__(self, trace: Trace, max_new_tokens: int, repeat: bool) -> None:
        self.trace = trace
        self.max_new_tokens = max_new_tokens
        self.max_prompt_tokens = max(group.prompt_tokens for group in trace.groups)
        self.warnings = trace.warnings
        self._repeat = repeat

    def unlike_file(self, sizes: Mapping[int, int]) -> tuple[str, ...]:
        """See `ReplayedWorkload.unlike_file`; from a twentieth of the whole file's mean on."""
        groups = self.trace.groups
        taken: dict[int, int] = {}
        for prompt, size in sizes.items():
            number = prompt % len(groups)
            taken[number] = max(taken.get(number, 0), min(size, len(groups[number].rollouts)))
        mean = self._mean_tokens(groups[number].rollouts[:n] for number, n in taken.items())
        whole = self._whole_mean
        if not taken or abs(mean - whole) <= 0.05 * whole:
            return ()
        most = max(taken.values())
        parts = [f"{len(taken):,} of {counted(len(groups), 'group')}"]
        if any(len(groups[number].rollouts) > n for number, n in taken.items()):
            parts.append(f"at most the first {counted(most, 'rollout')} of each")
        return (
            f"{self.trace.name}: the run took {', '.join(parts)}, whose mean is {mean:,.0f} "
            f"tokens; that of the whole file is {whole:,.0f}: shuffle its rows if their order "
            "means nothing",
        )

    @cached_property
    def _whole_mean(self) -> float:
        """Of the whole file; every run of it asks."""
        return self._mean_tokens(group.rollouts for group in self.trace.groups)

    def _mean_tokens(self, groups: Iterable[Iterable[Sequence[TracedTurn]]]) -> float:
        """The mean length of rollouts whose turns are cut to the cap."""
        cap = self.max_new_tokens
        lengths = [
            sum(min(t.new_tokens, cap) for t in turns) for group in groups for turns in group
        ]
        return sum(lengths) / max(len(lengths), 1)

    def _group(self, number: int, size: int) -> TraceGroup:
        """The trace's group of this number, with at least ``size`` rollouts."""
        name, groups = self.trace.name, self.trace.groups
        if number >= len(groups) and not self._repeat:
            raise ScenarioError(
                FIELD,
                f"{name} holds {len(groups)} groups and the run asked for group {number + 1}; set "
                "repeat: true to start over, or run fewer steps",
            )
        group = groups[number % len(groups)]
        if size > len(group.rollouts):
            raise ScenarioError(
                FIELD,
                f"{name} holds {len(group.rollouts)} rollouts for group {number % len(groups)} and "
                f"{size} were asked for; lower workload.group_size (and what a policy may raise it "
                "to), or bring a trace with larger groups",
            )
        return group


class TraceWorkload(_Replayed):
    """Response lengths, and rewards if the trace has them, replayed from a file.

    rewards: the model for a trace without rewards; its draws are keyed like the synthetic ones.
    within_sd: for traces of single requests: each row becomes a prompt whose median response is the
    row's, with lognormal rollouts of that spread around it, as many as are asked for.
    Lengths beyond ``max_new_tokens`` are cut to it, and `warnings` counts them.
    """

    def __init__(
        self,
        trace: Trace,
        max_new_tokens: int,
        *,
        rewards: RewardModel | None = None,
        within_sd: float | None = None,
        repeat: bool = False,
        seed: int = 0,
    ) -> None:
        super().__init__(trace, max_new_tokens, repeat)
        self._spread = within_sd is not None
        if self._spread and trace.grouped:
            raise ScenarioError(
                "workload.lengths.within_sd",
                f"{trace.name} has groups, which have their own spread; leave within_sd out",
            )
        _check_rewards(trace, rewards, self._spread)
        self.longest = _longest(trace, max_new_tokens, self._spread)
        if not self._spread:
            self.warnings += _cut_warnings(trace, max_new_tokens)
        self._keyed = SyntheticWorkload(
            LengthModel.lognormal(1.0, 0.0, within_sd or 0.0),
            rewards or ConstantReward(),
            1,
            LARGEST_CAP,
            seed,
        )

    def _drawn(self, prompt: int, size: int, attempt: int, version: int) -> GroupDraw:
        cap = self.max_new_tokens
        source = self._group(prompt, 1 if self._spread else size)
        held = len(source.rollouts)
        around = [(index + attempt) % held for index in range(size)]
        if self._spread:
            spread = self._keyed.effects(prompt, size, attempt).uncapped
            tokens = whole_tokens(source.new_tokens[0] * spread, cap).tolist()
        else:
            tokens = [min(source.rollouts[i][0].new_tokens, cap) for i in around]
        if source.rewards is None:
            drawn = self._keyed.draw(prompt, size, attempt).rewards
            rewards = self._keyed.rewards.graded(drawn, tokens, cap)
        else:
            rewards = [source.rewards[i] for i in around]
        return GroupDraw(source.prompt_tokens, tokens, rewards)


def _longest(trace: Trace, cap: int, spread: bool) -> tuple[int, int]:
    """(prompt, new tokens) of the longest possible rollout; spread: up to the cap."""
    if spread:
        return max(group.prompt_tokens for group in trace.groups), cap
    pairs = ((g.prompt_tokens, min(max(g.new_tokens), cap)) for g in trace.groups)
    return max(pairs, key=sum)


def _check_rewards(trace: Trace, rewards: RewardModel | None, spread: bool) -> None:
    """ScenarioError unless exactly one of the trace and a model gives the rewards."""
    field = "workload.rewards"
    if rewards is None:
        if not trace.has_rewards:
            raise ScenarioError(field, f"missing; {trace.name} has no reward column")
        return
    if trace.has_rewards:
        raise ScenarioError(field, f"{trace.name} has its own rewards; leave this out")
    if rewards.difficulty_length_correlation or (rewards.length_correlation and not spread):
        key = (
            "length_correlation" if rewards.length_correlation else "difficulty_length_correlation"
        )
        raise ScenarioError(
            f"{field}.{key}",
            f"the lengths of {trace.name} come without the random effects to correlate with; "
            f"leave {key} out",
        )


def _cut_warnings(trace: Trace, max_new_tokens: int) -> tuple[str, ...]:
    lengths = [tokens for group in trace.groups for tokens in group.new_tokens]
    cut = sum(tokens > max_new_tokens for tokens in lengths)
    if cut:
        return (
            f"{trace.name}: max_new_tokens ({max_new_tokens}) cuts {cut} of "
            f"{counted(len(lengths), 'response')}, which are longer",
        )
    counts = Counter(lengths)
    longest = max(counts)
    alike = counts.pop(longest)
    if longest == max_new_tokens or len(counts) < 20 or alike < 0.01 * len(lengths):
        return ()
    near = max((count for tokens, count in counts.items() if tokens > longest / 2), default=0)
    if alike < 10 * near:
        return ()
    return (
        f"{trace.name}: {alike / len(lengths):.0%} of the responses have exactly {longest} tokens, "
        "the most of all, as if they had been cut there: with max_new_tokens "
        f"({max_new_tokens}) they would be longer, and the run takes them as they are",
    )


class TurnTraceWorkload(_Replayed):
    """Turns, and rewards if the trace has them, replayed from a file.

    What exceeds a cap is cut to it, or ended there; what takes longer than the environment's
    timeout is given up. Without rewards in the trace, a rollout that ends by itself earns 1 and
    every other 0. Raises ScenarioError for a prompt that leaves no room in ``max_context_tokens``.
    """

    def __init__(
        self,
        trace: Trace,
        max_new_tokens: int,
        max_context_tokens: int | None = None,
        environment: EnvironmentSection | None = None,
        *,
        repeat: bool = False,
    ) -> None:
        super().__init__(trace, max_new_tokens, repeat)
        self._caps = Caps(max_new_tokens, max_context_tokens)
        self._patience = Patience.of(environment)
        boot_s = 0.0 if environment is None else environment.boot_s
        if isinstance(boot_s, DrawnSeconds):
            raise ScenarioError("environment.boot_s", "give a number of seconds beside a trace")
        self._boot_s = boot_s
        if max_context_tokens is not None and max_context_tokens <= self.max_prompt_tokens:
            raise ScenarioError(
                "workload.max_context_tokens",
                f"is {max_context_tokens}, and {trace.name} has a prompt of "
                f"{self.max_prompt_tokens} tokens: make it larger",
            )

    @property
    def max_context_tokens(self) -> int:
        """The longest context, tokens."""
        if self._caps.context_tokens is not None:
            return self._caps.context_tokens
        cap = self.max_new_tokens
        return max(
            sum(turn.observation_tokens + min(turn.new_tokens, cap) for turn in turns)
            for group in self.trace.groups
            for turns in group.rollouts
        )

    def _drawn(self, prompt: int, size: int, attempt: int, version: int) -> GroupDraw:
        source = self._group(prompt, size)
        made, rewards = [], []
        for index in range(size):
            place = (index + attempt) % len(source.rollouts)
            turns = [(*turn, 1.0) for turn in source.rollouts[place]]
            taken = trajectory(
                source.prompt_tokens, turns, "stop", self._caps, self._patience, self._boot_s
            )
            known = source.rewards[place] if source.rewards else float(taken.ending not in CUT)
            made.append(taken)
            rewards.append(0.0 if taken.ending in FAILED else known)
        lengths = [trajectory.new_tokens for trajectory in made]
        return GroupDraw(source.prompt_tokens, lengths, rewards, None, made)
