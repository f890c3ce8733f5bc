"""The model that a launch or a log names."""

from __future__ import annotations

import re

from rollcast.simulator.launches.parts import Part, nobody
from rollcast.simulator.stacks.settings import Settings, value

_HUB = re.compile(r"(?:^|/)models--[^/]+?--([^/]+)(?:/|$)")
"""A folder of Hugging Face's cache."""
_SUFFIX = re.compile(r"(?:-(?:base|instruct|thinking|chat|it|hf|zero|\d{4}|bf16|v\d[\d.]*))*")


def model_part(settings: Settings, what: str) -> Part:
    """The model's preset, by the last name of the path that it was loaded from; without a value
    where no preset has that name. what: the log or launch, in words for the sources."""
    from rollcast.simulator.costs.presets.models import model_presets

    path = value(settings, "model")
    if not isinstance(path, str):
        return nobody("model", "models", what)
    setting = settings["model"]
    cached = _HUB.search(path)
    last = cached[1] if cached else path.rstrip("/").rpartition("/")[2]
    last = last.lower().removeprefix("meta-")
    for name in sorted(model_presets(), key=len, reverse=True):
        if last.startswith(name) and _SUFFIX.fullmatch(last[len(name) :]):
            return Part("model", name, f"{setting.theirs}: {path} in {setting.place}")
    return Part(
        "model",
        None,
        f"{setting.theirs} is {path} in {setting.place}, which is no "
        "preset; give --model, a preset or a folder with its config.json",
    )
