"""Settings that no file of a run states and its steps tell."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from rollcast.calibration.logs import overlay
from rollcast.simulator.costs.engine.layout import NODE_GPUS
from rollcast.simulator.stacks.log_format import Row, StackLog
from rollcast.simulator.stacks.settings import Place, Setting, Settings

CAP = "workload.max_new_tokens"
_LONGEST, _MEAN = "max_new_tokens", "mean_new_tokens"
_LEAST_AT_CAP = 3
"""Steps whose longest responses are equally long before that is taken for the cap."""
_TOKENS, _EACH, _STEP = "total_tokens", "tokens_per_gpu_s", "step_s"
_NEAR = 0.01
"""By how much a count of GPUs may differ between steps, and from a whole number."""
_GPU_KEYS = ("run.gpus_per_node", "run.nodes", "run.rollout_gpus", "cluster.trainer_gpus")


def of_steps(
    stack: StackLog, whole: overlay.Series, settings: Settings, overlaps: bool | None
) -> Settings:
    """``settings`` with the cap and the GPUs, where they lack them and the steps tell. overlaps: as
    `StackLog.overlaps` says; where rollouts have GPUs of their own, whose throughput is logged is
    not the same in all releases."""
    steps = [step for _, step in sorted(whole.steps.items())]
    rows, place = [stack.row(step.values) for step in steps], steps[0].place
    found = dict(settings)
    if CAP not in settings and (cap := _cap(rows, place)) is not None:
        found[CAP] = cap
    if overlaps is False and not any(key in settings for key in _GPU_KEYS):
        found |= {setting.key: setting for setting in _gpus(stack, rows, place)}
    return found


def _cap(rows: list[Row], place: Place) -> Setting | None:
    """Most steps' longest response, which none exceeds. Where no step has its longest, the mean of
    most steps, all of whose responses were cut there."""
    longest = [
        row[_LONGEST] for row in rows if _LONGEST in row and row.get(_MEAN, 0) < row[_LONGEST]
    ]
    of = "longest"
    if not any(_LONGEST in row for row in rows):
        longest, of = [row[_MEAN] for row in rows if _MEAN in row], "mean"
    most = max(longest, default=0.0)
    times = longest.count(most)
    if times < _LEAST_AT_CAP or 2 * times < len(longest) or most != int(most):
        return None
    said = f"the {of} response of {times} of {len(longest)} steps"
    return Setting(CAP, int(most), said, place, implied=True)


def _gpus(stack: StackLog, rows: list[Row], place: Place) -> Iterator[Setting]:
    """All tokens over those a second and GPU (verl/trainer/ppo/metric_utils.py,
    ``compute_throughout_metrics``), where every step gives the same whole number."""
    counts = [
        row[_TOKENS] / (row[_EACH] * row[_STEP])
        for row in rows
        if row.get(_TOKENS, 0) > 0 and row.get(_EACH, 0) > 0 and row.get(_STEP, 0) > 0
    ]
    gpus = round(median(counts)) if counts else 0
    if not gpus or any(abs(count - gpus) > _NEAR * gpus for count in counts):
        return
    by = " and ".join(stack.metrics[column][0] for column in (_TOKENS, _EACH))
    nodes = gpus // NODE_GPUS if gpus % NODE_GPUS == 0 else 1
    yield Setting("run.nodes", nodes, by, place, implied=True)
    yield Setting("run.gpus_per_node", gpus // nodes, by, place, implied=True)
