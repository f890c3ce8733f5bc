"""Prints the lowest versions that the simulator asks for, as constraints of pip."""

import tomllib
from pathlib import Path


def lowest(requirements: list[str]) -> list[str]:
    """``name==version`` of each ``name>=version``."""
    return [
        text.partition(",")[0].strip().replace(">=", "==") for text in requirements if ">=" in text
    ]


if __name__ == "__main__":
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    print("\n".join(lowest(project["dependencies"])))
