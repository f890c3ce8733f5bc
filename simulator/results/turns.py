"""Summary of a run's turns."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollcast.simulator.rollout import CALL_ENDS, CALL_KINDS, ENDINGS
from rollcast.simulator.spans import Run


def turn_summary(run: Run, segments: dict[str, NDArray[Any]]) -> dict[str, Any]:
    """``turns`` of a summary; empty for a run without turns and judges.

    turns_mean, turns_p95, turns_max, observation_tokens_mean, context_tokens_mean, endings: of
    finished rollouts. Mean seconds of a turn: queue_s, model_s, environment_queue_s, environment_s.
    environment, reward: calls, ``timeout``, ``failed``, ``closed``, mean busy slots, and their
    share of slots.
    """
    if not len(run.calls):
        return {}
    done = segments["finished"] == 1
    turns = segments["turn"][done] + 1
    observed = segments["observation_tokens"][done]
    context = observed + segments["prompt_tokens"][done] + segments["total_tokens"][done]
    endings = Counter(ENDINGS[number] for number in segments["ending"][done].tolist())
    computed = segments["end_s"] > segments["start_s"]
    kind = run.calls["kind"]
    summary: dict[str, Any] = {
        "turns_mean": mean(turns),
        "turns_p95": float(np.quantile(turns, 0.95)) if len(turns) else None,
        "turns_max": int(turns.max()) if len(turns) else None,
        "observation_tokens_mean": mean(observed),
        "context_tokens_mean": mean(context),
        "endings": {name: endings[name] for name in ENDINGS if endings[name]},
        "queue_s": mean((segments["start_s"] - segments["submitted_s"])[computed]),
        "model_s": mean((segments["end_s"] - segments["start_s"])[computed]),
    }
    slots = {"environment": run.shape.environment_slots, "reward": run.shape.reward_slots}
    for number, name in enumerate(CALL_KINDS):
        summary |= _calls(run, kind == number, name, slots[name])
    return {"turns": summary}


def _calls(run: Run, chosen: NDArray[np.bool_], name: str, slots: int) -> dict[str, Any]:
    """The figures of one kind of call."""
    if not chosen.any():
        return {}
    asked, start, end = (run.calls[column][chosen] for column in ("asked_s", "start_s", "end_s"))
    ended = Counter(CALL_ENDS[number] for number in run.calls["ended"][chosen].tolist())
    busy = float((end - start).sum()) / run.makespan_s if run.makespan_s else None
    return {
        f"{name}_queue_s": mean(start - asked),
        f"{name}_s": mean(end - start),
        name: {
            "calls": int(chosen.sum()),
            **{word: ended[word] for word in ("timeout", "failed", "closed")},
            "busy_slots_mean": busy,
            "use": busy / slots if slots and busy is not None else None,
        },
    }


def mean(values: NDArray[Any]) -> float | None:
    """The mean; None of nothing."""
    return float(np.mean(values)) if len(values) else None
