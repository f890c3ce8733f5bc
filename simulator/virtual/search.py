"""The smallest run in which a control plane fails: over how large the run is, when requests arrive,
how long their answers are, and what goes wrong. Found and minimised by Hypothesis."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from rollcast.simulator.errors import RollcastError
from rollcast.simulator.scenario.scenario import Scenario
from rollcast.simulator.virtual.faults import Fault, Kind
from rollcast.simulator.virtual.fleet import Fleet
from rollcast.simulator.virtual.prompts import Reply

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

MOST_REPLIES = 12
EARLY_S, LATE_FAULT_S, LONGEST_FAULT_S = 10, 100, 120
SOON_S = 0.5
VIRTUAL_S, EVENTS = 36_000.0, 1_000_000
"""Bounds of a run, so that one that goes on for ever is found to fail."""


@dataclass(frozen=True)
class Search:
    """What may be chosen. examples: runs to try. steps, batch_groups, group_size, tokens: at most
    so many updates, groups a batch, rollouts a group and tokens an answer; None: as many as the
    scenario has. late_s: whole virtual seconds after which a request arrives at most. faults: kinds
    of the one fault that may happen; the replica works again within two minutes."""

    examples: int = 100
    steps: int | None = None
    batch_groups: int | None = None
    group_size: int | None = None
    tokens: int | None = None
    late_s: int = 30
    faults: Collection[Kind] = ("dies", "hangs", "errors")


@dataclass(frozen=True)
class Case:
    """A run of a search. tokens, arrives_s: of the first requests, whose answers have a turn each
    and rewards 0, 1, 0, 1 within a group; later requests take them again from the first."""

    steps: int = 1
    batch_groups: int = 1
    group_size: int = 1
    tokens: Sequence[int] = (1,)
    arrives_s: Sequence[float] = (0,)
    fault: Fault | None = None

    @property
    def settings(self) -> tuple[str, ...]:
        """Of the scenario."""
        sizes = (
            f"workload.batch_groups={self.batch_groups}",
            f"workload.group_size={self.group_size}",
        )
        return (f"steps={self.steps}", *sizes)

    @property
    def options(self) -> Mapping[str, Any]:
        """Of `simulator.virtual.trial.try_control`."""
        return {"replies": self._reply, "faults": () if self.fault is None else (self.fault,)}

    def _reply(self, number: int, place: int, turn: int) -> Reply:
        of = number * self.group_size + place
        arrives_s = self.arrives_s[of % len(self.arrives_s)]
        return Reply(self.tokens[of % len(self.tokens)], float(place % 2), arrives_s=arrives_s)

    def __str__(self) -> str:
        tokens, late = _all(self.tokens, "token"), _all(self.arrives_s, "s")
        fault = self.fault
        told = "no fault"
        if fault is not None:
            until = "" if fault.until_s is None else f" until {fault.until_s:g} s"
            told = f"replica {fault.replica} {fault.kind} at {fault.at_s:g} s{until}"
        return (
            f"{_many(self.steps, 'step')} of {_many(self.batch_groups, 'group')} of "
            f"{_many(self.group_size, 'rollout')}; answers of {tokens}; requests arrive after "
            f"{late}; {told}"
        )


def _many(number: float, what: str) -> str:
    return f"{number:g} {what}{'' if number == 1 or what == 's' else 's'}"


def _all(values: Sequence[float], what: str) -> str:
    if len(set(values)) == 1:
        return _many(values[0], what)
    return f"{', '.join(f'{value:g}' for value in values)} {what}{'' if what == 's' else 's'}"


class _When(NamedTuple):
    """A fault and its time, counted from just after the arrival of a request, or from the start:
    requests are in flight soon after they arrive, and a fault that meets none shows nothing."""

    kind: Kind
    at_s: float
    replica: int
    lasts_s: int
    request: int | None

    def fault(self, arrives_s: Sequence[int]) -> Fault:
        """arrives_s: of the first requests."""
        of = self.request
        at_s = self.at_s + (0 if of is None else arrives_s[of % len(arrives_s)] + SOON_S)
        until_s = None if self.kind == "errors" else at_s + self.lasts_s
        return Fault(at_s, self.kind, self.replica, until_s)


@dataclass
class Failure:
    """The smallest failing run. fleet: None if there was none yet."""

    case: Case
    error: BaseException
    fleet: Fleet | None = field(repr=False)


def smallest_failure(
    run: Callable[[Case, Callable[[Fleet], None]], None], scenario: Scenario, search: Search
) -> Failure | None:
    """The smallest case in which ``run`` raises; None where none of ``search.examples`` does. The
    same every time that the same modules are loaded: Hypothesis tries constants of their code, too.
    run: called with a case, and with what it calls with the fleet before it raises. Raises
    ImportError with a sentence where Hypothesis is not installed."""
    try:
        from hypothesis import HealthCheck, Phase, Verbosity, given, reject, settings
    except ImportError:
        raise ImportError(
            "a search needs Hypothesis, which is not installed: pip install 'rollcast[testing]'"
        ) from None
    last: list[Failure] = []

    @settings(
        max_examples=search.examples,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
        derandomize=True,
        database=None,
        deadline=None,
        report_multiple_bugs=False,
        verbosity=Verbosity.quiet,
    )
    @given(cases(scenario, search))
    def holds(case: Case) -> None:
        fleets: list[Fleet] = []
        try:
            run(case, fleets.append)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            if isinstance(error, RollcastError) and not fleets:
                reject()  # the scenario does not have this size
            last[:] = [Failure(case, error, fleets[-1] if fleets else None)]
            raise

    try:
        holds()
    except KeyboardInterrupt:
        raise
    except BaseException:
        if not last:
            raise
    return last[0] if last else None


def cases(scenario: Scenario, search: Search) -> SearchStrategy[Case]:
    """The runs that may be chosen; the smaller, the simpler."""
    from hypothesis import strategies as st

    batch, workload = scenario.plan.batch, scenario.workload

    def up_to(chosen: int | None, most: int) -> SearchStrategy[int]:
        return st.integers(1, chosen or most)

    replies = st.lists(
        st.tuples(up_to(search.tokens, workload.max_new_tokens), st.integers(0, search.late_s)),
        min_size=1,
        max_size=MOST_REPLIES,
    )
    fault: SearchStrategy[_When | None] = st.none()
    if search.faults:
        some = st.builds(
            _When,
            st.sampled_from(list(search.faults)),
            st.just(0) | st.integers(0, EARLY_S) | st.integers(0, LATE_FAULT_S),
            st.just(0) | st.integers(0, scenario.shape.replicas - 1),
            st.integers(1, LONGEST_FAULT_S),
            st.none() | st.just(0) | st.integers(0, MOST_REPLIES - 1),
        )
        fault = st.one_of(fault, some, some)  # two of three runs have one

    def case(
        steps: int, groups: int, size: int, of: list[tuple[int, int]], fault: _When | None
    ) -> Case:
        tokens, arrives_s = zip(*of, strict=True)
        happens = None if fault is None else fault.fault(arrives_s)
        return Case(steps, groups, size, tokens, arrives_s, happens)

    return st.builds(
        case,
        up_to(search.steps, scenario.steps),
        up_to(search.batch_groups, batch.groups),
        up_to(search.group_size, batch.group_size),
        replies,
        fault,
    )
