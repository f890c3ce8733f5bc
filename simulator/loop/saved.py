"""A loop between two steps as plain data, and back.

The tables of its run are left to `simulator.loop.journal`; everything else is here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

from simulator.loop.loop import Loop
from simulator.loop.plain import from_plain, to_plain
from simulator.loop.policy_state import load_state, save_state
from simulator.loop.prompts import PromptOrder
from simulator.policy import Policy
from simulator.rollout import Group
from simulator.spans import Ledger, Run

_COUNTS = ("next_step", "next_group")


def save_loop(loop: Loop) -> dict[str, Any]:
    """What a loop on another world needs to go on from here. Raises RunError while anything is
    under way, or for a policy whose state is no plain data."""
    state = loop.state_dict()
    run: Run = state["result"]
    return {
        "version": state["version"],
        **save_work(loop),
        "ledger": to_plain(run.ledger),
        "start_s": run.start_s,
        "end_s": run.end_s,
    }


def save_work(loop: Loop) -> dict[str, Any]:
    """What a loop knows and keeps for later steps: the policy's state, the order of prompts, and
    the groups that are not in flight. Raises RunError for a policy whose state is no plain data."""
    rollouts = loop.rollouts
    return {
        "next_step": loop.next_step,
        "next_group": rollouts.next_group,
        "policy": save_state(loop.policy, loop.policy_state),
        "prompts": to_plain(rollouts.prompts),
        "buffer": [_plain_group(group) for group in rollouts.buffer],
        "ready": [_plain_group(group) for group in rollouts.ready],
    }


def load_loop(data: Any, policy: Policy, run: Run) -> dict[str, Any]:
    """The state that `Loop.load_state_dict` takes. run: what the journal brought back.

    Raises ValueError for data that `save_loop` does not make of a loop with this policy.
    """
    state = from_plain(data, dict[str, Any], "the loop")
    _require(state, ("version", "ledger", "start_s", "end_s"))
    loaded = load_work(state, policy, run)
    run.ledger = from_plain(state["ledger"], Ledger, "the ledger")
    run.start_s = from_plain(state["start_s"], float, "start_s")
    run.end_s = from_plain(state["end_s"], float, "end_s")
    loaded["version"] = from_plain(state["version"], int, "version")
    if loaded["next_step"] != len(run.steps):
        raise ValueError(f"{loaded['next_step']} steps are done, and {len(run.steps)} are kept")
    return loaded


def load_work(data: Any, policy: Policy, run: Run) -> dict[str, Any]:
    """The state that `Loop.load_state_dict` takes, but for its version. run: the one that goes on,
    whose stays the groups' rollouts name; without those of the rollouts, where it begins anew.

    Raises ValueError for data that `save_work` does not make of a loop with this policy.
    """
    state = from_plain(data, dict[str, Any], "the loop")
    _require(state, (*_COUNTS, "policy", "prompts", "buffer", "ready"))
    return {
        "policy_state": load_state(policy, state["policy"]),
        "prompts": from_plain(state["prompts"], PromptOrder, "prompts"),
        "buffer": deque(_groups(state["buffer"], "buffer", run)),
        "ready": list(_groups(state["ready"], "ready", run)),
        "result": run,
        **{name: from_plain(state[name], int, name) for name in _COUNTS},
    }


def _require(state: dict[str, Any], names: Iterable[str]) -> None:
    for name in names:
        if name not in state:
            raise ValueError(f"the loop has no {name}")


def _plain_group(group: Group) -> dict[str, Any]:
    """A group, its winners by their places among its rollouts."""
    plain: dict[str, Any] = to_plain(group)
    places = {id(rollout): place for place, rollout in enumerate(group.rollouts)}
    plain["winners"] = [places[id(winner)] for winner in group.winners]
    return plain


def _groups(data: Any, where: str, run: Run) -> Iterable[Group]:
    for plain in from_plain(data, list[dict[str, Any]], where):
        winners = from_plain(plain.get("winners"), list[int], f"{where}.winners")
        group: Group = from_plain({**plain, "winners": []}, Group, where)
        if any(not 0 <= place < len(group.rollouts) for place in winners):
            raise ValueError(f"{where}: group {group.group} has winners that it has not")
        group.winners = [group.rollouts[place] for place in winners]
        for rollout in group.rollouts:
            if rollout.group != group.group:
                raise ValueError(f"{where}: group {group.group} has a rollout of another")
            if any(not 0 <= row < len(run.stays) for row in rollout.rows):
                raise ValueError(f"{where}: {rollout} has stays that there are not")
        yield group
