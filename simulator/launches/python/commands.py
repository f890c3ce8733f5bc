"""Commands that a script of Python runs, in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rollcast.simulator.launches.pieces import Text, known, unknown
from rollcast.simulator.launches.python import texts
from rollcast.simulator.launches.python.pure import spelt
from rollcast.simulator.launches.python.script import Command, Made, Partly, Shipped, Written
from rollcast.simulator.launches.values import Unknown
from rollcast.simulator.stacks.settings import Place

_RUNS = ("run", "Popen", "call", "check_call", "check_output")
_STARTS = ("exec_command", "run_command", "run_cmd", "execute_command", "exec_cmd")
_NAMES = ("args", "cmd", "command")


def of_call(made: Made, shipped: Shipped, maybe: str) -> Iterator[Command]:
    """The commands that a call runs. maybe: why it may not be reached."""
    start = shipped.start(made.name)
    if start is not None:
        yield from _started(made, start, maybe)
        return
    module, _, last = made.name.rpartition(".")
    runs = module.endswith("subprocess") and last in _RUNS
    if not runs and made.name not in ("os.system", "os.popen") and not last.startswith(_STARTS):
        return
    given = next((made.argument(name) for name in _NAMES if name in made.given), None)
    given = made.argument(0) if given is None else given
    if isinstance(given, list):
        yield Command(tuple(_word(one, made.place) for one in given), made.place, maybe)
    elif isinstance(given, Written | Partly | str):
        text = texts.pieces_of(given, made.place) or ()
        for words in texts.commands(text):
            yield Command(words, made.place, maybe)


def _started(made: Made, start: Mapping[str, str], maybe: str) -> Iterator[Command]:
    """A stack's program, with the arguments that a function of the stack's is given."""
    given = made.argument(start["arguments"])
    given = made.argument(0) if given is None else given
    script = made.argument(start.get("script", ""))
    words = [known("python3", made.place)]
    words.append(_word(start.get("default", "") if script is None else script, made.place))
    if isinstance(given, list):
        words.extend(_word(one, made.place) for one in given)
    elif isinstance(given, str | Partly):
        words.extend(texts.words(texts.pieces_of(given, made.place) or ()))
    else:
        return
    yield Command(tuple(words), made.place, maybe)


def _word(value: Any, place: Place) -> Text:
    if isinstance(value, Unknown) and not isinstance(value, Partly):
        return unknown("{" + value.text + "}", place, value.why)
    found = texts.pieces_of(value, place)
    return found if found is not None else unknown("{" + spelt(value) + "}", place, "it is no text")
