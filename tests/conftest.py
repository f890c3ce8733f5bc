"""No test measures time: a busy machine fails none.

The gate runs the same examples each time, so that it answers for the change and not for chance;
`make laws` looks for new ones.
"""

import os
from collections.abc import Callable

import pytest
from hypothesis import settings

from rollcast.simulator.cli.app import main
from tests.laws import examples

settings.register_profile("gate", deadline=None, derandomize=True, max_examples=examples(100))
settings.register_profile("search", deadline=None, print_blob=True, max_examples=examples(100))
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "gate"))

Cli = Callable[..., tuple[int, str, str]]


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    """Runs the command line in this process: (exit code, stdout, stderr)."""

    def call(*argv: object) -> tuple[int, str, str]:
        capsys.readouterr()
        with pytest.raises(SystemExit) as stop:
            main([str(arg) for arg in argv])
        said = capsys.readouterr()
        assert isinstance(stop.value.code, int)
        return stop.value.code, said.out, said.err

    return call
