"""What the trainer refuses, and why it stops."""

from __future__ import annotations

from rollcast.simulator.errors import RunError, ScenarioError


class NonFiniteLoss(RunError):  # noqa: N818 - the loss is the event, not a mistake of the caller
    """The loss or the gradient of an update was not finite. The weights are those from before."""


class UnsupportedModelError(ScenarioError):
    """A model that the trainer, or its shared-prefix layout, cannot compute exactly."""

    def __init__(self, message: str, field: str = "engine.model") -> None:
        super().__init__(field, message)
