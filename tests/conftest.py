"""No test measures time: a busy machine fails none.

The gate runs the same examples each time, so that it answers for the change and not for chance;
`make laws` looks for new ones.
"""

import gc
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
import typer.main
from hypothesis import settings

from tests.laws import SEARCHING, examples
from tests.running import exit_code

settings.register_profile("gate", deadline=None, derandomize=True, max_examples=examples(100))
settings.register_profile("search", deadline=None, print_blob=True, max_examples=examples(100))
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "gate"))

if "torch" not in sys.modules:  # else tensorboardX imports it, for figures that no test gives it
    with pytest.MonkeyPatch.context() as hidden, suppress(ImportError):
        hidden.setitem(sys.modules, "torch", None)
        import tensorboardX  # noqa: F401

gc.disable()  # vLLM and all tests are imported: what is alive would be searched again and again


def pytest_collection_finish() -> None:
    """What was imported is never garbage, so that the collector need not look at it again."""
    gc.freeze()
    gc.set_threshold(100_000)  # as the command line does
    gc.enable()


def pytest_unconfigure() -> None:
    """Nor for the end of the process."""
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def stays_frozen() -> Iterator[None]:
    """An engine of vLLM that ends would have the collector look at everything again."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gc, "unfreeze", lambda: None)
        yield


FEWER = {
    "fits.responses._RESAMPLES": 25,
    "judge.advice.DRAWS": 3,
    "judge.advice._POINT_STEPS": 6,
    "judge.hold_out._MOST": 16,
    "judge.hold_out._MOST_DRAWN": 30_000,
    "judge.hold_out._MOST_SIMULATED": 5,
    "judge.hold_out._RUNS": 5,
    "judge.pace._ROUNDS": 5,
    "judge.pace._STEPS": 6,
    "judge.whole.MOST_STEPS": 7,
}
"""Samples and steps that are most of a calibration's time; tests need no more of them."""


@pytest.fixture(scope="session", autouse=True)
def few_samples() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name, number in () if SEARCHING else FEWER.items():
            patch.setattr(f"rollcast.calibration.{name}", number)
        yield


QUICK = {
    "planner.race.EASY": 1,  # rollouts of a step up to which each simulation has all of its steps
    "studies.sampling_error.LEAST_ROLLOUTS": 100,
    "studies.tornado.MOST_STEPS": 4,
    "studies.uncertainty.COST_DRAWS": 8,
    "studies.uncertainty.LEAST_ROLLOUTS": 100,
}
"""Short runs and draws that are most of the time of an interval, or a plan, of a small scenario."""


@pytest.fixture(scope="module")
def quick_intervals() -> Iterator[None]:
    """For a file of tests in which intervals are there, and need not be good."""
    with pytest.MonkeyPatch.context() as patch:
        for name, number in () if SEARCHING else QUICK.items():
            patch.setattr(f"rollcast.simulator.{name}", number)
        yield


@pytest.fixture(scope="session", autouse=True)
def one_core() -> Iterator[None]:
    """Tests keep all cores busy by themselves: a fork of all that they have imported takes a sixth
    of an import's processor time, and ends it no sooner."""
    with pytest.MonkeyPatch.context() as patch:
        for module in ("calibration.judge.beside", "simulator.planner.workers"):
            patch.setattr(f"rollcast.{module}.cores", lambda: 1)
        yield


@pytest.fixture(scope="session", autouse=True)
def one_command_line() -> Iterator[None]:
    """The command line is built once, as in a process of its own, and not for every command."""
    build, built = typer.main.get_command, dict[tuple[typer.Typer, int], Any]()

    def kept(app: typer.Typer) -> Any:
        key = app, len(app.registered_commands)
        if key not in built:
            built[key] = build(app)
        return built[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typer.main, "get_command", kept)
        yield


Cli = Callable[..., tuple[int, str, str]]


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    """Runs the command line in this process: (exit code, stdout, stderr)."""

    def call(*argv: object) -> tuple[int, str, str]:
        capsys.readouterr()
        code, said = exit_code(*argv), capsys.readouterr()
        return code, said.out, said.err

    return call
