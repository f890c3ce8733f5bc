"""Tests of control planes on simulated engines: what ``pytest --rollcast`` does."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from rollcast.simulator.virtual import laws
from rollcast.simulator.virtual.fleet import Fleet
from rollcast.simulator.virtual.trial import Tried, keep, try_control

FILES = pytest.StashKey[list[Path]]()
SEED = "rollcast_seed"


class Plugin:
    """The hooks. A test marked ``rollcast(SCENARIO, "key=value", ...)`` gets its ``fleet`` and runs
    on the virtual clock, once for each seed of ``--rollcast-seeds``; plain or async. Afterwards
    every rollout must have ended once (`simulator.virtual.laws.conserved`), unless the mark has
    ``conserved=False``. Other options of the mark: those of `try_control`."""

    def __init__(self, seeds: int, out: Path) -> None:
        self._seeds, self._out = seeds, out

    @pytest.fixture
    def fleet(self) -> None:
        """The engines and the trainer (`simulator.virtual.fleet.Fleet`); there while the test
        runs."""

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """A test for each seed."""
        if metafunc.definition.get_closest_marker("rollcast") and self._seeds > 1:
            metafunc.fixturenames.append(SEED)
            metafunc.parametrize(SEED, range(self._seeds))

    @pytest.hookimpl(tryfirst=True)
    def pytest_pyfunc_call(self, pyfuncitem: pytest.Function) -> bool | None:
        """Runs a marked test on the clock."""
        mark = pyfuncitem.get_closest_marker("rollcast")
        if mark is None:
            return None
        names = pyfuncitem._fixtureinfo.argnames
        given = {name: pyfuncitem.funcargs[name] for name in names}
        options = dict(mark.kwargs)
        options.setdefault("seed", pyfuncitem.funcargs.get(SEED, 0))
        holds = options.pop("conserved", True)
        scenario, *settings = mark.args
        path = Path(scenario)
        if not path.is_absolute():
            path = pyfuncitem.path.parent / path

        def main(fleet: Fleet) -> Any:
            return pyfuncitem.obj(**{**given, **({"fleet": fleet} if "fleet" in names else {})})

        def failed(fleet: Fleet) -> None:
            self._keep(pyfuncitem, fleet)

        tried = try_control(main, path, *settings, failed=failed, **options)
        if holds:
            self._hold(pyfuncitem, tried)
        return True

    def _hold(self, item: pytest.Function, tried: Tried) -> None:
        try:
            laws.conserved(tried.journal)
        except AssertionError:
            self._keep(item, tried.fleet)
            raise

    def _keep(self, item: pytest.Function, fleet: Fleet) -> None:
        name = re.sub(r"[^\w.-]+", "-", item.nodeid).strip("-")
        item.stash[FILES] = keep(fleet, self._out / name)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Any:
        """Says where the files of a failed run are."""
        report = yield
        if report.when == "call" and report.failed and FILES in item.stash:
            listed = "\n".join(str(path) for path in item.stash[FILES])
            report.sections.append(("rollcast: what happened, a trace for Perfetto", listed))
        return report
