"""How long new weights take to reach the engines: checkpoint-engine and verl."""

from __future__ import annotations

from pathlib import Path

from calibration.jury.files import PUBLISHED, number, one_of, read_rows, whole
from calibration.jury.verdict import Case, Source, mape_checks
from simulator.costs import RooflineCost
from simulator.costs.hardware import load_gpu
from simulator.costs.models import load_model

FILE = "weight_updates.csv"
COLUMNS = ("name", "weight_bytes", "gpus", "update_s", "role", "source")


def forecast_s(weight_bytes: float) -> float:
    """Seconds of a weight sync with the roofline's defaults, whatever the number of GPUs."""
    cost = RooflineCost(load_model("qwen3-8b"), load_gpu("h20"))
    return cost.sync_fixed_s + weight_bytes / cost.sync_bytes_per_s


def source(data: Path) -> Source:
    """Published weight updates against the defaults; needs no data set."""
    cases = []
    for line, row in enumerate(read_rows(PUBLISHED / FILE, COLUMNS), start=2):
        where = f"{FILE}, line {line}"
        gpus = whole(row, "gpus", where)
        role = one_of(row, "role", where, ("calibrated", "held out"))
        framework = row["source"].split(",")[0].split(" ")[0]
        cases.append(
            Case(
                f"{framework} update",
                f"{row['name']}, {gpus} GPUs",
                "s",
                number(row, "update_s", where, 1e-9),
                forecast_s(number(row, "weight_bytes", where, 1.0)),
                role,  # type: ignore[arg-type]
            )
        )
    held = [case for case in cases if case.role == "held out"]
    return Source(
        "weight_updates",
        "Weight updates",
        "MoonshotAI/checkpoint-engine README (H800, H20); verl's ablation of it (H20)",
        calibrated="sync_bytes_per_s and sync_fixed_s, on checkpoint-engine's 8 and 16 GPUs",
        held_out="checkpoint-engine on 256 GPUs; verl",
        assumed=("the update does not hang on the number of GPUs",),
        cases=tuple(cases),
        checks=tuple(mape_checks(held, None, "held out, ")[:1]),  # verl's four share no scale
        misses=(
            "checkpoint-engine on 256 GPUs is a little slower than the forecast, which does not "
            "grow with the number of GPUs.",
            "verl's figures are of other mechanisms: a 7B model in 0.02 s to 0.12 s is a broadcast "
            "between GPUs without the fixed cost of a checkpoint service, and Qwen3-235B resharded "
            "between 64 and 64 GPUs takes 3 to 9 times what a broadcast does. Give sync_fixed_s "
            "and sync_bytes_per_s of your own stack.",
        ),
    )
