"""A workload replayed from a trace file."""

from __future__ import annotations

from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.workload.draws import GroupDraw, address
from rollcast.simulator.workload.lengths import LARGEST_CAP, LengthModel, whole_tokens
from rollcast.simulator.workload.rewards import ConstantReward, RewardModel
from rollcast.simulator.workload.synthetic import SyntheticWorkload
from rollcast.simulator.workload.traces import FIELD, Trace


class TraceWorkload:
    """Lengths, and rewards where the trace has them, replayed from a file.

    Group g of the run is the g-th group of the trace, and index i its i-th rollout. ``repeat``
    starts over once the groups are used up. A restart (``attempt`` k) of index i gets the length of
    index i + k, counted around the group: another response to the same prompt. There is no drift.

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
        if within_sd is not None and trace.grouped:
            raise ScenarioError(
                "workload.lengths.within_sd",
                f"{trace.name} has groups, which have their own spread; leave within_sd out",
            )
        _check_rewards(trace, rewards, within_sd is not None)
        self.trace = trace
        self.max_new_tokens = max_new_tokens
        self.max_prompt_tokens = max(group.prompt_tokens for group in trace.groups)
        self.longest = _longest(trace, max_new_tokens, within_sd is not None)
        self.repeat = repeat
        self.warnings = trace.warnings
        if within_sd is None:
            self.warnings += _cut_warnings(trace, max_new_tokens)
        self._keyed = SyntheticWorkload(
            LengthModel.lognormal(1.0, 0.0, within_sd or 0.0),
            rewards or ConstantReward(),
            1,
            LARGEST_CAP,
            seed,
        )
        self._spread = within_sd is not None

    def draw(
        self,
        group: int,
        size: int,
        attempt: int = 0,
        version: int = 0,
        prompt: int | None = None,
        visit: int = 0,
    ) -> GroupDraw:
        """The first ``size`` rollouts of ``group``; see `Workload.draw`.

        Raises ScenarioError where the trace holds fewer groups or rollouts than asked for.
        """
        if size < 1:
            raise ValueError(f"no group of {size} rollouts")
        group, attempt = address(group, attempt, prompt, visit)
        groups = self.trace.groups
        if group >= len(groups) and not self.repeat:
            raise ScenarioError(
                FIELD,
                f"{self.trace.name} holds {len(groups)} groups and the run asked for group "
                f"{group + 1}; set repeat: true to start over, or run fewer steps",
            )
        source = groups[group % len(groups)]
        held = len(source.new_tokens)
        around = [(index + attempt) % held for index in range(size)]
        if self._spread:
            spread = self._keyed.uncapped(group, size, attempt)
            tokens = whole_tokens(source.new_tokens[0] * spread, self.max_new_tokens).tolist()
        elif size > held:
            raise ScenarioError(
                FIELD,
                f"{self.trace.name} holds {held} rollouts for group {group % len(groups)} and "
                f"{size} were asked for; lower workload.group_size (and what a policy may raise it "
                "to), or bring a trace with larger groups",
            )
        else:
            tokens = [min(source.new_tokens[i], self.max_new_tokens) for i in around]
        if source.rewards is None:
            drawn = self._keyed.draw(group, size, attempt).rewards
            rewards = self._keyed.rewards.graded(drawn, tokens, self.max_new_tokens)
        else:
            rewards = [source.rewards[i] for i in around]
        return GroupDraw(source.prompt_tokens, tokens, rewards)


def _longest(trace: Trace, cap: int, spread: bool) -> tuple[int, int]:
    """(prompt, new tokens) of the longest rollout that there may be; spread: around the trace's
    lengths, up to the cap."""
    if spread:
        return max(group.prompt_tokens for group in trace.groups), cap
    pairs = ((g.prompt_tokens, min(max(g.new_tokens), cap)) for g in trace.groups)
    return max(pairs, key=sum)


def _check_rewards(trace: Trace, rewards: RewardModel | None, spread: bool) -> None:
    """ScenarioError unless the trace or a model, and only one of them, gives the rewards."""
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
    if not cut:
        return ()
    return (
        f"{trace.name}: {cut} of {len(lengths)} responses were longer than max_new_tokens "
        f"({max_new_tokens}) and were cut to it",
    )
