"""The section on how to reproduce a page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from rollcast.simulator.report.markup import Markup
from rollcast.simulator.report.parts import code, section
from rollcast.simulator.results.write import plain

_ABOUT = (
    "Save the scenario, with every setting applied, as scenario.yaml; paths in it start from "
    "its folder. The same version of rollcast gives the same figures."
)


def reproduced(data: Mapping[str, Any], command: str, about: str = _ABOUT) -> Markup:
    """The command and its scenario."""
    text = yaml.safe_dump(plain(dict(data)), sort_keys=False, allow_unicode=True, width=90)
    return section(
        "How to make it again",
        code(command, "the command"),
        code(text, "the scenario"),
        about=about,
    )
