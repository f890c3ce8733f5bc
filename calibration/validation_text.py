"""What a validation says in words and rows, for the terminal and for the page."""

from __future__ import annotations

from typing import Any

from simulator.cli.console import seconds

COLUMNS = ("policy", "seed", "", "run time", "forecast (90 %)", "error", "step", "rollout",
            "train", "tokens/s", "bubble", "staleness", "steps inside", "pulse")  # fmt: skip
_METRICS = ("step_s", "rollout_s", "train_s", "tokens_per_s", "bubble", "staleness")


def table_rows(content: dict[str, Any]) -> list[list[str]]:
    """One row a run, as text, under `COLUMNS`."""
    rows = []
    for run in content["runs"]:
        total, metrics = run["total"], run["metrics"]
        low, high = total["interval_s"]
        rows.append(
            [
                f"{run['policy']} [{run['setting']}]" if run["setting"] else run["policy"],
                str(run["seed"]),
                "held out" if run["held_out"] else "calibrated on",
                seconds(total["measured_s"]),
                f"{seconds(total['forecast_s'])} ({seconds(low)} - {seconds(high)})",
                f"{100 * total['error']:+.1f} %",
                *(_error(metrics[name]) for name in _METRICS),
                f"{100 * run['coverage_of_steps']:.0f} %",
                _pulse(run["pulse"]),
            ]
        )
    return rows


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
            f"noise floor over {floor['pairs']} pairs of runs of one policy: steps differ by "
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
    order = content["ranking"]
    if order["pairs"]:
        said.append(f"fastest first, measured: {', '.join(order['measured'])}")
        said.append(f"fastest first, forecast: {', '.join(order['forecast'])}")
        said.append(
            f"{order['clear_pairs_right']} of {order['clear_pairs']} pairs whose real difference "
            f"exceeds the noise are in the right order ({len(order['pairs'])} pairs in all)"
        )
        for pair in order["pairs"]:
            if pair["may_flip"]:
                slower = next(p for p in pair["policies"] if p != pair["faster"])
                said.append(
                    f"not sure: {pair['faster']} before {slower} in {100 * pair['sure']:.0f} % of "
                    "the draws; within the interval they change places"
                )
    return said


def flags(content: dict[str, Any]) -> list[str]:
    """Each flag once, with the runs that it concerns."""
    found: dict[str, list[str]] = {}
    for run in content["runs"]:
        for flag in run["flags"]:
            found.setdefault(flag, []).append(run["name"])
    return [f"{flag} [{', '.join(names)}]" for flag, names in found.items()]
