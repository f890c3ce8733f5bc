"""The errors of a real run, and another library's error in one sentence."""

from __future__ import annotations

import re
from collections.abc import Iterable

from rollcast.simulator.errors import RunError, ScenarioError

_ALLOCATES = re.compile(r"tried to allocate (\d+) bytes")  # torch's, on a CPU
_COUNTS = re.compile(r"\d+ validation errors? for ")


class EngineError(RunError):
    """The real engine cannot start or cannot go on; the message says why in one sentence."""


def sentence(error: BaseException) -> str:
    """The text of an error of ours; of another library's the first line that says what is wrong,
    with its type."""
    if isinstance(error, RunError | ScenarioError):
        return str(error)
    text = str(error).strip()
    if asked := _ALLOCATES.search(text):
        return f"it needs {int(asked[1]) / 1e9:,.1f} GB of memory at once, which this machine lacks"
    lines = text.splitlines()
    if len(lines) > 1 and _COUNTS.match(lines[0]):  # pydantic's: then the errors, with their types
        lines = [line.partition(" [type=")[0].strip() for line in lines[1:]]
        lines = [" ".join(line for line in lines[:2] if line)]
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def require_calls(target: object, name: str, paths: Iterable[str], library: str) -> None:
    """Raises EngineError unless an object of a library has every dotted path."""
    for path in paths:
        part = target
        for attribute in path.split("."):
            part = getattr(part, attribute, None)
            if part is None:
                raise EngineError(f"{library} lacks {name}.{path}, which the engine needs.")


class RankLostError(Exception):
    """A rank of the trainer is lost or differs from the others: the trainer has to be started again
    from its last state."""


class NonFiniteLoss(RunError):  # noqa: N818 - the loss is the event, not a mistake of the caller
    """The loss or the gradient of an update was not finite; the weights are those before it."""


class UnsupportedModelError(ScenarioError):
    """A model that the trainer, or its shared-prefix layout, cannot compute exactly."""

    def __init__(self, message: str, field: str = "engine.model") -> None:
        super().__init__(field, message)
