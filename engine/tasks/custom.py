"""Prompts from a file, with any reward function and Hugging Face tokenizer."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

from rollcast.engine.errors import EngineError, sentence
from rollcast.engine.tasks.base import Prompt
from rollcast.engine.tasks.named import load_named
from rollcast.engine.tasks.rewards import CONCURRENCY, TIMEOUT_S, RewardPool
from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.results.read import NotJsonError, parse_json

_HELD_OUT_EVERY = 8
_LOOKED_AT = 64  # prompts whose tokens the model has to know


class FileTask:
    """Prompts from a JSON Lines file, judged by a function named ``package.module:function``.

    Each line is an object with ``prompt`` (text) and, for the reward function, ``answer`` (any
    JSON). An eighth of the prompts, by a hash of their text, is held out. See
    `engine.tasks.rewards.RewardPool` for the function. reward: empty where the environment gives
    the rewards. chat: whether each prompt is the user's turn of the tokenizer's chat template.
    folder: searched for the function's module after the Python path. Raises ScenarioError for a
    file, tokenizer or function that cannot be used.
    """

    def __init__(
        self,
        prompts: str | Path,
        reward: str,
        tokenizer: str | Path,
        *,
        max_new_tokens: int,
        chat: bool = False,
        reward_timeout_s: float = TIMEOUT_S,
        reward_concurrency: int = CONCURRENCY,
        reward_failed: float = 0.0,
        folder: Path | None = None,
    ) -> None:
        if max_new_tokens < 1:
            raise ScenarioError("engine.task.max_new_tokens", "it has to be at least 1.")
        self.max_new_tokens = max_new_tokens
        self._chat = chat
        self._reward = None
        if reward:
            function = load_named(reward, "engine.task.reward", folder=folder)
            self._reward = RewardPool(
                function, reward, reward_timeout_s, reward_concurrency, reward_failed
            )
        self._tokenizer = _load_tokenizer(tokenizer)
        if chat and not self._tokenizer.chat_template:
            raise ScenarioError("engine.task.chat", f"{tokenizer} has no chat template.")
        rows = _read(Path(prompts))
        self._train = [row for row in rows if not _is_held_out(row[0])]
        self._held_out = [row for row in rows if _is_held_out(row[0])]
        if not self._train:
            raise ScenarioError("engine.task.prompts", f"{prompts} holds no prompt to train on.")
        self._require_the_models_tokenizer(Path(tokenizer))

    def _require_the_models_tokenizer(self, model: Path) -> None:
        """Raises ScenarioError where some prompts have tokens that the model does not know."""
        try:
            config = parse_json((model / "config.json").read_text(encoding="utf-8"))
            known = config.get("text_config", config)["vocab_size"]
        except (OSError, NotJsonError, KeyError, TypeError, AttributeError):
            return  # whoever loads the model says it
        for text, answer in self._train[:_LOOKED_AT]:
            most = max(self._prompt(text, answer).token_ids, default=0)
            if isinstance(known, int) and most >= known:
                raise ScenarioError(
                    "engine.model",
                    f"{model.name} has the tokenizer of another model: the prompt {text[:40]!r} "
                    f"has the token {most}, but the model knows {known} tokens",
                )

    def prompt(self, group: int, seed: int) -> Prompt:
        """Every prompt once, in an order drawn by the seed, then again in another order."""
        epoch, position = divmod(group, len(self._train))
        order = list(range(len(self._train)))
        Random(f"prompts {seed} {epoch}").shuffle(order)
        return self._prompt(*self._train[order[position]])

    def reward(self, prompt: Prompt, response_text: str) -> float:
        """By the reward function, beside the caller: a `LateReward`."""
        if self._reward is None:
            raise EngineError("This task has no reward function.")
        return self._reward(prompt, response_text)

    def held_out(self, count: int) -> Sequence[Prompt]:
        """The first ``count`` held-out prompts, or as many as there are."""
        return [self._prompt(*row) for row in self._held_out[:count]]

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text, without special tokens."""
        return str(self._tokenizer.decode(list(token_ids), skip_special_tokens=True))

    def encode(self, text: str) -> Sequence[int]:
        """The token ids of an observation, without special tokens."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False)
        return ids

    def _prompt(self, text: str, answer: Any) -> Prompt:
        if self._chat:
            turn = [{"role": "user", "content": text}]
            text_as_sent = self._tokenizer.apply_chat_template(
                turn, tokenize=False, add_generation_prompt=True
            )
            ids = self._tokenizer.encode(text_as_sent, add_special_tokens=False)
        else:
            ids = self._tokenizer.encode(text)
        return Prompt(text, tuple(ids), answer)


def _read(path: Path) -> list[tuple[str, Any]]:
    field, rows = "engine.task.prompts", []
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ScenarioError(field, f"{path} cannot be read: {error}") from error
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = parse_json(line)
        except NotJsonError as error:
            raise ScenarioError(field, f"line {number} of {path} is not JSON: {error}.") from error
        if not isinstance(row, dict) or not isinstance(row.get("prompt"), str) or not row["prompt"]:
            raise ScenarioError(field, f"line {number} of {path} has no text under 'prompt'.")
        rows.append((row["prompt"], row.get("answer")))
    return rows


def _is_held_out(text: str) -> bool:
    return hashlib.blake2b(text.encode(), digest_size=1).digest()[0] % _HELD_OUT_EVERY == 0


def _load_tokenizer(path: str | Path) -> Any:
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(str(path), trust_remote_code=False)
    except Exception as error:
        message = f"{path} has no tokenizer that can be loaded: {sentence(error)}"
        raise ScenarioError("engine.model", message) from error
