"""Assignments: ``a=b``, ``a+=b``, ``a[1]=b`` and arrays."""

from __future__ import annotations

from rollcast.simulator.launches.pieces import shown
from rollcast.simulator.launches.shell.arithmetic import UndecidedError
from rollcast.simulator.launches.shell.braces import TooLongError
from rollcast.simulator.launches.shell.expand import Array, Value, bounded
from rollcast.simulator.launches.shell.session import Session
from rollcast.simulator.launches.shell.syntax import Assignment, Word


def assign(session: Session, assignment: Assignment) -> None:
    """Sets what an assignment says. Raises TooLongError."""
    expander = session.expander()
    variables = session.state.variables
    held = variables.get(assignment.name)
    value: Value
    if isinstance(assignment.value, tuple):
        array = held.copy() if assignment.append and isinstance(held, Array) else Array()
        if assignment.append and isinstance(held, tuple):
            array.items[0] = held
        if isinstance(held, Array) and held.named:
            array.named = True
        for index, word in assignment.value:
            if index is not None:
                array.items[_index(session, array, index)] = expander.text(word)
                continue
            for text in expander.fields([word]):
                array.items[array.next()] = text
        if sum(map(len, array.items.values())) > 20_000:
            raise TooLongError
        value = array
    elif assignment.index is not None:
        array = held.copy() if isinstance(held, Array) else Array()
        at = _index(session, array, assignment.index)
        text = expander.text(assignment.value)
        array.items[at] = (*array.items.get(at, ()), *text) if assignment.append else text
        value = array
    else:
        text = expander.text(assignment.value)
        if assignment.append and isinstance(held, Array):
            value = held.copy()
            value.items[0] = (*held.items.get(0, ()), *text)
        elif assignment.append:
            value = bounded((*(held if isinstance(held, tuple) else ()), *text))
        else:
            value = text
    variables[assignment.name] = value
    session.state.unset.discard(assignment.name)


def _index(session: Session, array: Array, word: Word) -> int | str:
    expander = session.expander()
    if array.named:
        return shown(expander.text(word))
    try:
        return expander.number(word)
    except UndecidedError:
        array.named = True
        return shown(expander.text(word))
