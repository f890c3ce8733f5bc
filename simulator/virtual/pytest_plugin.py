"""Tests of control planes on simulated engines: what ``pytest --rollcast`` does."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from rollcast.simulator.results.write import write_text
from rollcast.simulator.studies.simulate import load
from rollcast.simulator.virtual import laws
from rollcast.simulator.virtual.errors import VirtualError
from rollcast.simulator.virtual.fleet import Fleet
from rollcast.simulator.virtual.search import EVENTS, VIRTUAL_S, Case, Search, smallest_failure
from rollcast.simulator.virtual.trial import keep, try_control

FILES = pytest.StashKey[list[Path]]()
SEED = "rollcast_seed"

OPTIONS = {"conserved", "search", "case"} | {
    name
    for function in (try_control, Fleet.__init__)
    for name, parameter in inspect.signature(function).parameters.items()
    if parameter.kind is parameter.KEYWORD_ONLY
} - {"failed"}

Failed = Callable[[Fleet], None]


class Plugin:
    """The hooks. A test marked ``rollcast(SCENARIO, "key=value", ...)`` gets its ``fleet`` and runs
    on the virtual clock, once for each seed of ``--rollcast-seeds``; plain or async. Afterwards
    every rollout must have ended once (`simulator.virtual.laws.conserved`), unless the mark has
    ``conserved=False``. With ``search=100``, or a `simulator.virtual.search.Search`, it runs as
    many times, under sizes, arrivals, lengths and faults that Hypothesis chooses, and the smallest
    run that fails is kept; ``case=Case(...)`` runs one of these. Other options of the mark: those
    of `try_control`."""

    def __init__(self, seeds: int, out: Path) -> None:
        self._seeds, self._out = seeds, out

    @pytest.fixture
    def fleet(self) -> None:
        """The engines and the trainer (`simulator.virtual.fleet.Fleet`), during the test."""

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
        options = dict(mark.kwargs)
        for name in options.keys() - OPTIONS:
            pytest.fail(
                f"rollcast() has no option {name!r}; it has {', '.join(sorted(OPTIONS))}", False
            )
        options.setdefault("seed", pyfuncitem.funcargs.get(SEED, 0))
        holds = options.pop("conserved", True)
        search, case = options.pop("search", None), options.pop("case", None)
        path, settings = _scenario(pyfuncitem, *mark.args)

        def run(case: Case | None, failed: Failed) -> None:
            sizes, more = (case.settings, case.options) if case else ((), {})
            chosen: Any = {**options, **more, "failed": failed}
            try:
                tried = try_control(_main(pyfuncitem), path, *settings, *sizes, **chosen)
                if holds:
                    with _kept(tried.fleet, failed):
                        laws.conserved(tried.journal)
            except VirtualError as error:  # says where: the kernel's own lines help nobody
                raise _plain(error) from None

        if search is None:
            run(case, lambda fleet: self._keep(pyfuncitem, fleet))
            return True
        options = {"virtual_s": VIRTUAL_S, "events": EVENTS, **options}
        self._search(pyfuncitem, run, load(path, *settings), search, mark.args)
        return True

    def _search(
        self,
        item: pytest.Function,
        run: Callable[[Case, Failed], None],
        scenario: Any,
        search: Search | int,
        mark: Any,
    ) -> None:
        if not isinstance(search, Search):
            search = Search(examples=search)
        found = smallest_failure(run, scenario, search)
        if found is None:
            return
        error, case = found.error, found.case
        said = f"the smallest run that fails: {case}"
        if found.fleet is not None:
            self._keep(item, found.fleet)
            folder = self._folder(item)
            again = ", ".join([*map(repr, mark), f"case={case!r}"])
            write_text(
                folder / "smallest.txt",
                f"{error}\n\n{said}\n\nThis runs it alone:\n\n@pytest.mark.rollcast({again})\n",
            )
            item.stash[FILES] = [folder / "smallest.txt", *item.stash[FILES]]
            said += f"\nits timeline, picture and trace for Perfetto: {folder}"
        error.add_note(said)
        if isinstance(error, pytest.fail.Exception):
            raise pytest.fail.Exception(f"{error}\n{said}", pytrace=False) from None
        raise error

    def _folder(self, item: pytest.Function) -> Path:
        return self._out / re.sub(r"[^\w.-]+", "-", item.nodeid).strip("-")

    def _keep(self, item: pytest.Function, fleet: Fleet) -> None:
        item.stash[FILES] = keep(fleet, self._folder(item))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Any:
        """Says where the files of a failed run are."""
        report = yield
        if report.when == "call" and report.failed and FILES in item.stash:
            listed = "\n".join(str(path) for path in item.stash[FILES])
            report.sections.append(("rollcast: what happened, a trace for Perfetto", listed))
        return report


@contextmanager
def _kept(fleet: Fleet, failed: Failed) -> Iterator[None]:
    try:
        yield
    except AssertionError as error:
        failed(fleet)
        raise _plain(error) from None


def _plain(error: Exception) -> BaseException:
    """A failure whose sentence says all."""
    return pytest.fail.Exception(f"{type(error).__name__}: {error}", pytrace=False)


def _scenario(item: pytest.Function, scenario: str, *settings: str) -> tuple[Path, tuple[str, ...]]:
    path = Path(scenario)
    return path if path.is_absolute() else item.path.parent / path, settings


def _main(item: pytest.Function) -> Callable[[Fleet], Any]:
    names = item._fixtureinfo.argnames
    given = {name: item.funcargs[name] for name in names}

    def main(fleet: Fleet) -> Any:
        return item.obj(**{**given, **({"fleet": fleet} if "fleet" in names else {})})

    return main
