"""``wandb-metadata.json`` of Weights & Biases: the machine of a run, and its command line."""

from __future__ import annotations

from rollcast.calibration.logs.formats.configs import Given, NotConfigError, of_words
from rollcast.simulator.costs.presets.gpus import named_gpu
from rollcast.simulator.stacks.syntax.json_text import NotJsonError, parse

FILE = "wandb-metadata.json"
GPU, COUNT, MACHINES = "wandb: gpu", "wandb: gpu_count", "wandb: host"
"""Keys of what it says of the machine, which no stack's configuration has."""
_MOST_ARGUMENTS = 10_000


def from_metadata(text: str) -> tuple[list[Given], list[Given]]:
    """What it says of the machine, and the arguments of the command. Raises NotConfigError."""
    try:
        data = parse(text)
    except NotJsonError as error:
        raise NotConfigError(str(error)) from None
    if not isinstance(data, dict):
        raise NotConfigError("no mapping")
    machine = []
    name, count = data.get("gpu"), data.get("gpu_count")
    preset = named_gpu(name) if isinstance(name, str) else None
    if preset is not None:
        machine.append(Given(GPU, preset, 0))
    if isinstance(count, int) and not isinstance(count, bool) and 0 < count <= 1024:
        machine += [Given(COUNT, count, 0), Given(MACHINES, 1, 0)]
    words = data.get("args")
    if not isinstance(words, list):
        return machine, []
    return machine, of_words([str(one) for one in words[:_MOST_ARGUMENTS]], 0)
