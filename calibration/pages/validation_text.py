"""What a validation says in words and rows, for the terminal and for the page."""

from __future__ import annotations

import re
from typing import Any

from rollcast.simulator.results.text import seconds, share

SETTING = "setting"
_FIGURES = (
    "run time",
    "forecast",
    "90 % interval",
    "error",
    "step",
    "rollout",
    "train",
    "tokens/s",
    "bubble",
    "staleness",
    "steps inside",
    "machine speed",
)
_METRICS = ("step_s", "rollout_s", "train_s", "tokens_per_s", "bubble", "staleness")


def table_rows(content: dict[str, Any]) -> list[dict[str, str]]:
    """One row a run: text by column. The setting is left out where all runs have one."""
    settings = any(run["setting"] for run in content["runs"])
    return [_row(run, settings) for run in content["runs"]]


def _row(run: dict[str, Any], settings: bool) -> dict[str, str]:
    total = run["total"]
    low, high = total["interval_s"]
    figures = (
        seconds(total["measured_s"]),
        seconds(total["forecast_s"]),
        f"{seconds(low)} - {seconds(high)}",
        f"{100 * total['error']:+.1f} %",
        *(_error(run["metrics"][name]) for name in _METRICS),
        f"{100 * run['coverage_of_steps']:.0f} %",
        _pulse(run["pulse"]),
    )
    return {
        "policy": run["policy"],
        **({SETTING: short_setting(run["setting"])} if settings else {}),
        "seed": str(run["seed"]),
        "steps": str(run["steps"]),
        "run is": "held out" if run["held_out"] else "calibrated on",
        **dict(zip(_FIGURES, figures, strict=True)),
    }


def _pulse(pulse: dict[str, float] | None) -> str:
    return "-" if pulse is None else f"{pulse['short']:.2f} / {pulse['long']:.2f}"


def _error(metric: dict[str, Any]) -> str:
    value = metric["median_absolute_error"]
    return f"{value:.3f}" if metric["unit"] == "difference" else f"{100 * value:.1f} %"


def sentences(content: dict[str, Any]) -> list[str]:
    """What the numbers come to."""
    modes = {
        "replay": "Replay: the runs' own lengths with the fitted costs. It judges costs alone.",
        "predict": "Predict: fitted lengths, rewards and costs. It judges the whole forecast.",
    }
    machine = content["machine_noise"]
    texts = [
        modes[content["mode"]],
        *_speed(content["runs"]),
        f"Machine noise: a step of the calibration differs from its fit by a median of "
        f"{share(machine['rollout_s'])} (rollout) and {share(machine['train_s'])} (training).",
        *_noise_floor(content),
    ]
    errors = content["held_out"]
    if errors["step_s"] is not None:
        texts.append(
            f"Held-out runs, median error: step time {share(errors['step_s'])} "
            f"({share(errors['step_s_at_own_level'])} after scaling each run to its own mean "
            f"level), run time {share(errors['run_time'])}."
        )
    held = content["coverage"]["held_out"]
    if held["step_count"]:
        texts.append(
            f"90 % intervals of held-out runs contain {100 * held['steps']:.0f} % of "
            f"{held['step_count']} steps and {100 * held['runs']:.0f} % of {held['run_count']} run "
            "times."
        )
    return [*texts, *quality_sentences(content.get("quality", {})), *_order(content["ranking"])]


def _speed(runs: list[dict[str, Any]]) -> list[str]:
    """At which speed of the machine the runs are judged, where it was measured."""
    known = [run for run in runs if run["pulse"] is not None]
    if not known:
        return []
    judged = "at its own speed" if known[0]["at_pulse"] else "at the calibration's speed"
    return [
        "Machine speed: seconds of a fixed small computation (short / long) during the run over "
        f"the calibration's; above 1 the machine was slower. Each run is judged {judged}."
    ]


def _noise_floor(content: dict[str, Any]) -> list[str]:
    """How far runs of one policy are apart."""
    floor = content["noise_floor"]
    if not floor["pairs"]:
        return ["No policy was run twice: the noise between runs is not known."]
    pairs = f"{floor['pairs']} pair{'s' if floor['pairs'] > 1 else ''}"
    texts = [f"Noise between runs of one policy ({pairs}): {_apart(floor)}."]
    if any(run["pulse"] is not None for run in content["runs"]):
        texts.append(f"The same at equal machine speed: {_apart(content['noise_floor_at_pulse'])}.")
    return texts


def _apart(floor: dict[str, Any]) -> str:
    return (
        f"steps differ by {share(floor['step_s'])} (median), run times by "
        f"{share(floor['run_time'])} (at most {share(floor['run_time_largest'])})"
    )


def _order(order: dict[str, Any]) -> list[str]:
    """Policies by step time, and which pairs are not clearly ordered."""
    if not order["pairs"]:
        return []
    texts = []
    for alike in order["sets"]:
        where = name_of_set(alike)
        texts.append(f"Fastest first, measured, {where}: {', '.join(alike['measured'])}.")
        texts.append(f"Fastest first, forecast, {where}: {', '.join(alike['forecast'])}.")
    clear, pairs = order["clear_pairs"], len(order["pairs"])
    texts.append(
        f"Pairs of policies that differ by more than the noise: {clear} of {pairs}; "
        f"{order['clear_pairs_right']} of them forecast in the right order."
    )
    for pair in order["pairs"]:
        if pair["may_flip"]:
            slower = next(p for p in pair["policies"] if p != pair["faster"])
            texts.append(
                f"Not clearly ordered, {name_of_set(order['sets'][pair['set']])}: {pair['faster']} "
                f"is faster than {slower} in {100 * pair['sure']:.0f} % of the draws."
            )
    return texts


def quality_sentences(by_policy: dict[str, dict[str, float]]) -> list[str]:
    """What the learning curves say of updates to target, and how a plan takes it."""
    if not by_policy:
        return []
    factors = ", ".join(
        f"{name} {one['factor']:.2f} ({one['low']:.2f} to {one['high']:.2f})"
        for name, one in by_policy.items()
    )
    asked = ", ".join(f"{name!r}: {one['factor']:.2f}" for name, one in by_policy.items())
    return [
        f"Updates to the same accuracy, as a multiple of synchronous RL's: {factors}.",
        f"For rollcast plan: quality: {{{asked}}}",
    ]


def short_setting(setting: str) -> str:
    """Where a run's scenario differs from the first one's, without the sections of the keys."""
    return re.sub(r"[\w.]+\.(\w+=)", r"\1", setting)


def name_of_set(alike: dict[str, Any]) -> str:
    """What the runs of one set of the ranking have in common."""
    setting = short_setting(alike["setting"])
    return f"{alike['steps']} steps" + (f" with {setting}" if setting else "")


def warnings(content: dict[str, Any]) -> list[str]:
    """Each warning once, with the runs that it concerns."""
    policies_by: dict[str, list[str]] = {}
    for run in content["runs"]:
        for warning in run["warnings"]:
            policies_by.setdefault(warning, []).append(run["name"])
    return [f"{warning} [{', '.join(names)}]" for warning, names in policies_by.items()]
