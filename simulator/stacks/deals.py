"""Which numbers a stack refuses to deal out unevenly, by the rules of its ``launch.yaml``::

    deals:
      - parts: rollouts of a batch                        # what is dealt, in words
        of: [workload.batch_groups, workload.group_size]  # ours, whose product is so many
        among: [data_parallel, run.micro_batch_rollouts]  # of whose product it is a multiple
        share: true           # not all of them: what each data-parallel GPU gets, rounded down
        since: 0.3            # releases (until: before) that all refuse
        where: {run.dynamic_batches: false}               # of runs of which all of this is known
        given: [run.processes]                            # of runs where each of these is said
        unless: [run.minibatches]                         # not of runs where one of these is said
        anywhere: false       # where the release, or a script of Python, tells the stack alone

``data_parallel`` and ``trainer_gpus`` count the trainer's GPUs: those that get rollouts of their
own, and all. A rule with a setting that nobody knows says nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rollcast.simulator.stacks.settings import meanings

DATA_PARALLEL, TRAINER_GPUS = "data_parallel", "trainer_gpus"


@dataclass(frozen=True, slots=True)
class Deal:
    """A rule, as said above."""

    parts: str
    of: tuple[str, ...]
    among: tuple[str, ...]
    share: bool = False
    since: str | None = None
    until: str | None = None
    where: Mapping[str, Any] = field(default_factory=dict)
    given: tuple[str, ...] = ()
    unless: tuple[str, ...] = ()
    anywhere: bool = True

    def holds(self, known: Mapping[str, Any]) -> bool:
        """Whether it is of a run of which this is known, by our key."""
        if any(known.get(key) is not None for key in self.unless):
            return False
        return all(known.get(key) is not None for key in self.given) and all(
            key in known and known[key] in (wanted if isinstance(wanted, list) else [wanted])
            for key, wanted in self.where.items()
        )


def deals(data: Iterable[Mapping[str, Any]], where: str) -> tuple[Deal, ...]:
    """Of ``deals`` in a file. Raises ValueError, which says ``where``, for unknown names."""
    found = []
    for entry in data:
        lists = {key: tuple(entry.get(key, ())) for key in ("of", "among", "given", "unless")}
        bounds = {key: str(entry[key]) for key in ("since", "until") if key in entry}
        try:
            one = Deal(**{**entry, **lists, **bounds})
        except TypeError as error:
            raise ValueError(f"{where}: deals: {error}") from None
        for name in (*one.of, *one.among, *one.given, *one.unless, *one.where):
            if name not in {*meanings(), DATA_PARALLEL, TRAINER_GPUS}:
                raise ValueError(f"{where}: deals: {name} is no setting of ours (meanings.yaml)")
        found.append(one)
    return tuple(found)
