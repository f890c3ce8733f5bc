"""Actors for Ray's own processes, which import this module alone and so start fast."""

import os
from typing import Any


class Placed:
    """Says where it is."""

    def group(self) -> str | None:
        import ray

        found = ray.util.get_current_placement_group()
        return None if found is None else str(found.id.hex())

    def devices(self) -> list[str]:
        return [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]


class Echo:
    """Says what it is told, or fails."""

    def say(self, value: Any) -> Any:
        return value

    def both(self) -> tuple[int, Any]:
        import numpy as np

        return 1, np.arange(5)

    def fail(self) -> None:
        raise ValueError("no")

    def die(self) -> None:
        os._exit(1)
