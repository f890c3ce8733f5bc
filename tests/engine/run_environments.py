"""Environments for whole runs."""

import time
from typing import Any


class Parrot:
    """Repeats what was said, after a while; some of it raises."""

    def reset(self, episode: Any) -> None:
        self.group, self.index = episode.group, episode.index

    def step(self, said: Any) -> dict[str, Any]:
        time.sleep(0.002 * (1 + self.index))
        if self.index == 3 and said.turn == 1:
            raise KeyError("the cage is empty")
        done = said.turn == 3
        return {"observation": said.text[::-1] + ">", "done": done, "reward": len(said.text) % 2}

    def close(self) -> None:
        pass


class Mute:
    """Has no step."""

    def reset(self, episode: Any) -> None:
        pass

    def close(self) -> None:
        pass
