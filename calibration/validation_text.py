"""What a validation says in words and rows, for the terminal and for the page."""

from __future__ import annotations

import re
from typing import Any

from simulator.cli.console import seconds

SETTING = "setting"
_FIGURES = ("run time", "forecast", "90 % interval", "error", "step", "rollout", "train",
            "tokens/s", "bubble", "staleness", "steps inside", "pulse")  # fmt: skip
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
    said = []
    what = {
        "replay": "replay: the runs' own lengths, under the fitted costs; judges the costs alone",
        "predict": "predict: fitted lengths and rewards as well; judges the whole forecast",
    }
    said.append(what[content["mode"]])
    known = [run for run in content["runs"] if run["pulse"] is not None]
    if known:
        judged = "its own pulse" if known[0]["at_pulse"] else "the calibration's pulse, not its own"
        said.append(
            "pulse: a fixed small computation timed all through a run, short / long, over the "
            f"calibration's (above 1, the machine was slower); each run is judged at {judged}"
        )
    machine, floor = content["machine_noise"], content["noise_floor"]
    said.append(
        "the machine alone moves a step of the calibration by a median of "
        f"{100 * machine['rollout_s']:.1f} % (rollout) and {100 * machine['train_s']:.1f} % (train)"
    )
    if floor["pairs"]:
        said.append(
            f"noise floor over {floor['pairs']} pair{'s' if floor['pairs'] > 1 else ''} of runs of "
            "one policy: steps differ by "
            f"{100 * floor['step_s']:.1f} % (median), run times by {100 * floor['run_time']:.1f} % "
            f"(at most {100 * floor['run_time_largest']:.1f} %)"
        )
        at_pulse = content["noise_floor_at_pulse"]
        if known:
            said.append(
                f"the same at one pulse: steps {100 * at_pulse['step_s']:.1f} %, run times "
                f"{100 * at_pulse['run_time']:.1f} % (at most "
                f"{100 * at_pulse['run_time_largest']:.1f} %)"
            )
    else:
        said.append("no policy was run twice, so there is no noise floor between runs")
    errors = content["held_out"]
    if errors["step_s"] is not None:
        said.append(
            f"median over held-out runs: step time off by {100 * errors['step_s']:.1f} %, by "
            f"{100 * errors['step_s_at_own_level']:.1f} % once each run's own level is taken out; "
            f"run time by {100 * errors['run_time']:.1f} %"
        )
    held = content["coverage"]["held_out"]
    if held["step_count"]:
        said.append(
            f"nominal 90 % intervals hold {100 * held['steps']:.0f} % of {held['step_count']} "
            f"held-out steps and {100 * held['runs']:.0f} % of {held['run_count']} run times"
        )
    said += quality_sentences(content.get("quality", {}))
    order = content["ranking"]
    if order["pairs"]:
        for alike in order["sets"]:
            where = name_of_set(alike)
            said.append(f"fastest first, measured, {where}: {', '.join(alike['measured'])}")
            said.append(f"fastest first, forecast, {where}: {', '.join(alike['forecast'])}")
        said.append(
            f"{order['clear_pairs_right']} of {order['clear_pairs']} pairs whose real difference "
            f"exceeds the noise are in the right order ({len(order['pairs'])} pairs in all)"
        )
        for pair in order["pairs"]:
            if pair["may_flip"]:
                slower = next(p for p in pair["policies"] if p != pair["faster"])
                where = name_of_set(order["sets"][pair["set"]])
                said.append(
                    f"not sure, {where}: {pair['faster']} before {slower} in "
                    f"{100 * pair['sure']:.0f} % of the draws; "
                    "within the interval they change places"
                )
    return said


def quality_sentences(found: dict[str, dict[str, float]]) -> list[str]:
    """What the learning curves say of updates to target, and how a plan takes it."""
    if not found:
        return []
    each = ", ".join(
        f"{name} {one['factor']:.2f} ({one['low']:.2f} to {one['high']:.2f})"
        for name, one in found.items()
    )
    asked = ", ".join(f"{name!r}: {one['factor']:.2f}" for name, one in found.items())
    return [
        f"updates to the same accuracy, against synchronous ones: {each}",
        f"for rollcast plan: quality: {{{asked}}}",
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
    found: dict[str, list[str]] = {}
    for run in content["runs"]:
        for warning in run["warnings"]:
            found.setdefault(warning, []).append(run["name"])
    return [f"{warning} [{', '.join(names)}]" for warning, names in found.items()]
