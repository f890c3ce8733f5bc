"""The door of pytest to `simulator.virtual.pytest_plugin`, which is imported by ``--rollcast``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

_MARK = (
    "rollcast(scenario, *settings, **options): a test of a control plane on simulated engines, in "
    "virtual time; needs --rollcast"
)


def pytest_addoption(parser: Any) -> None:
    """The options."""
    group = parser.getgroup("rollcast", "control planes on simulated engines")
    group.addoption("--rollcast", action="store_true", help="Run the tests marked rollcast.")
    group.addoption(
        "--rollcast-seeds",
        type=int,
        default=1,
        metavar="N",
        help="Run each with N seeds, which order differently what is ready at once.",
    )
    group.addoption(
        "--rollcast-out",
        default=".rollcast",
        metavar="DIR",
        help="Folder for the journal, trace and picture of runs that fail.",
    )


def pytest_configure(config: Any) -> None:
    """Registers the mark, and the plug-in if it is asked for."""
    config.addinivalue_line("markers", _MARK)
    if config.getoption("--rollcast"):
        from rollcast.simulator.virtual.pytest_plugin import Plugin

        out = Path(config.getoption("--rollcast-out")).absolute()
        config.pluginmanager.register(
            Plugin(config.getoption("--rollcast-seeds"), out), "rollcast-virtual"
        )


def pytest_collection_modifyitems(config: Any, items: list[Any]) -> None:
    """Skips marked tests without ``--rollcast``."""
    if config.getoption("--rollcast"):
        return
    import pytest

    for item in items:
        if item.get_closest_marker("rollcast"):
            item.add_marker(pytest.mark.skip(reason="needs pytest --rollcast"))
