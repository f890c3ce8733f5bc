"""A Ray of tests is no more than its actors need: the rest is a quarter of its start."""

from contextlib import AbstractContextManager
from unittest.mock import patch

UNNEEDED = ("start_monitor", "start_api_server", "start_log_monitor")


def small_ray() -> AbstractContextManager[object]:
    """Without the autoscaler, the dashboard's server, and what would show its logs."""
    from ray._private.node import Node

    return patch.multiple(Node, **{part: lambda *_, **__: None for part in UNNEEDED})
