"""Whether a condition holds, with the variables as they are."""

from __future__ import annotations

from collections.abc import Sequence

from rollcast.simulator.launches.pieces import Text, plain, shown, why
from rollcast.simulator.launches.shell import arithmetic
from rollcast.simulator.launches.shell.arithmetic import UndecidedError
from rollcast.simulator.launches.shell.conditions import Conditions, Operand
from rollcast.simulator.launches.shell.session import Session, Status


def answered(session: Session, tokens: Sequence[Operand | str], patterns: bool) -> Status:
    """Whether the tokens of a condition hold. patterns: as ``[[ ]]`` compares."""

    def number(text: Text) -> int | str:
        return whole(session, text)

    def is_set(name: str) -> bool | None:
        return True if name in session.state.variables else None

    conditions = Conditions(tokens, number, is_set, patterns)
    answer = conditions.answer()
    for name in conditions.taken:
        given = f"; --env {name}=... gives one" if " " not in name else ""
        session.found.note(f"{session.here()}: {name} is taken to have no value{given}")
    if answer.holds is None:
        return session.undecided(answer.why)
    return Status.YES if answer.holds else Status.NO


def whole(session: Session, text: Text) -> int | str:
    """The value of an expression, or why it has none."""
    if plain(text) is None:
        return why(text)
    try:
        expander = session.expander()
        return arithmetic.value(shown(text), expander.number_text, expander.store)
    except UndecidedError as error:
        return str(error)
