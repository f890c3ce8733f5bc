"""The model that a launch or a log names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from rollcast.simulator.launches.parts import Part, nobody
from rollcast.simulator.stacks.settings import Settings, value
from rollcast.simulator.stacks.yaml_file import read_yaml

_HUB = re.compile(r"(?:^|/)models--[^/]+?--([^/]+)(?:/|$)")
"""A folder of Hugging Face's cache."""
_OTHER_SHAPE = re.compile(r"\d-?layers?|draft|eagle|distill|tiny|random|embedding")
"""In names of models that are no longer of the shape that they are named after."""


def model_part(settings: Settings, what: str) -> Part:
    """The folder that the model was loaded from where it is here, else the preset of its shape, by
    the path; without a value where none is known. what: the log or launch, in words for the
    sources."""
    path = value(settings, "model")
    if not isinstance(path, str) or not path:
        return nobody("model", "models", what)
    setting = settings["model"]
    said = f"{setting.theirs}: {path} in {setting.place}"
    if (Path(path) / "config.json").is_file():
        return Part("model", str(Path(path).resolve()), said)
    found = shape_of(path)
    if found is None:
        return Part(
            "model",
            None,
            f"{setting.theirs} is {path} in {setting.place}, and no preset has its shape; give "
            "--model, a preset or a folder with its config.json",
        )
    name, preset = found
    return Part("model", preset, said if name == preset else f"{said}, of the shape of {preset}")


def shape_of(path: str) -> tuple[str, str] | None:
    """A name in a path, and the preset of the same shape: of the last folder that names any, the
    longest name. None where nothing does, or where the name says that the shape was changed."""
    cached = _HUB.search(path)
    folders = [cached[1]] if cached else [part for part in path.split("/") if part]
    for folder in reversed(folders):
        spelt = re.sub(r"(\d)_(\d)", r"\1.\2", folder.lower()).replace("_", "-")
        spelt = re.sub(r"qwen-(?=(?:2|2\.5|3)-)", "qwen", spelt)
        for name, preset in _names().items():
            found = re.search(rf"(?:^|-){re.escape(name)}(?=$|[-@:])", spelt)
            if found is not None:
                rest = spelt[: found.start()] + spelt[found.end() :]
                return None if _OTHER_SHAPE.search(rest) else (name, preset)
    return None


@cache
def _names() -> Mapping[str, str]:
    """Presets by name, their own among them, the longest first."""
    from rollcast.simulator.costs.presets.models import model_presets

    others: dict[str, str] = read_yaml(Path(__file__).with_name("model_names.yaml"))
    names = {**others, **{name: name for name in model_presets()}}
    return dict(sorted(names.items(), key=lambda item: -len(item[0])))
