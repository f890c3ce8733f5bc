"""Tests inside other stacks, for `make test-verl`: they need its environment."""

import importlib.util

if importlib.util.find_spec("verl") is None:
    collect_ignore_glob = ["test_*.py"]
