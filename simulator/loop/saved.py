"""What a loop keeps between two steps, as plain data, and back; without the tables of its run."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

from rollcast.simulator.core.policy import Policy
from rollcast.simulator.core.rollout import Group
from rollcast.simulator.loop.dispatch import PromptOrder
from rollcast.simulator.loop.loop import Loop
from rollcast.simulator.loop.policy_state import load_state, save_state
from rollcast.simulator.values.plain import from_plain, to_plain

_COUNTS = ("next_step", "next_group")


def save_work(loop: Loop) -> dict[str, Any]:
    """A loop's work between two steps: the policy's state, the order of prompts, groups not in
    flight. Raises RunError for a policy whose state is no plain data."""
    rollouts = loop.rollouts
    return {
        "next_step": loop.next_step,
        "next_group": rollouts.next_group,
        "policy": save_state(loop.policy, loop.policy_state),
        "prompts": to_plain(rollouts.prompts),
        "buffer": [_plain_group(group) for group in rollouts.buffer],
        "ready": [_plain_group(group) for group in rollouts.ready],
    }


def load_work(data: Any, policy: Policy) -> dict[str, Any]:
    """The state for `Loop.load_state_dict`, without version and run. Raises ValueError."""
    state = from_plain(data, dict[str, Any], "the loop")
    for name in (*_COUNTS, "policy", "prompts", "buffer", "ready"):
        if name not in state:
            raise ValueError(f"the loop has no {name}")
    return {
        "policy_state": load_state(policy, state["policy"]),
        "prompts": from_plain(state["prompts"], PromptOrder, "prompts"),
        "buffer": deque(_groups(state["buffer"], "buffer")),
        "ready": list(_groups(state["ready"], "ready")),
        **{name: from_plain(state[name], int, name) for name in _COUNTS},
    }


def _plain_group(group: Group) -> dict[str, Any]:
    """A group, its winners by their places among its rollouts, which have no rows of a table."""
    plain: dict[str, Any] = to_plain(group)
    places = {id(rollout): place for place, rollout in enumerate(group.rollouts)}
    plain["winners"] = [places[id(winner)] for winner in group.winners]
    for rollout in plain["rollouts"]:
        rollout["rows"] = []
    return plain


def _groups(data: Any, where: str) -> Iterable[Group]:
    for plain in from_plain(data, list[dict[str, Any]], where):
        winners = from_plain(plain.get("winners"), list[int], f"{where}.winners")
        group: Group = from_plain({**plain, "winners": []}, Group, where)
        if any(not 0 <= place < len(group.rollouts) for place in winners):
            raise ValueError(f"{where}: group {group.group} has winners that it has not")
        group.winners = [group.rollouts[place] for place in winners]
        for rollout in group.rollouts:
            if rollout.group != group.group:
                raise ValueError(f"{where}: group {group.group} has a rollout of another")
            if rollout.rows:
                raise ValueError(f"{where}: {rollout} has rows of a table")
        yield group
