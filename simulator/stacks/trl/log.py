"""TRL's console rows, dumped completions, and what its keys do not say by themselves."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise

from rollcast.simulator.stacks.log_format import (
    Metrics,
    Origin,
    Raw,
    Record,
    RecordError,
    Rollout,
    Row,
    digest,
    real,
    whole,
)
from rollcast.simulator.stacks.settings import Settings
from rollcast.simulator.stacks.settings import whole as setting
from rollcast.simulator.stacks.syntax.python_text import flat

_PREPARE = "profiling/Time taken: GRPOTrainer._prepare_inputs"
_BAR = re.compile(
    r"^\s*(?:Train: *)?\d{1,3}%\|[^|]*\|\s*(?P<done>\d{1,9})/(?P<last>\d{1,9}) "
    r"\[(?P<elapsed>\d[\d:]*)<",
    re.M,
)
"""tqdm's bar without a description, which is that of the updates, and ms-swift's."""
_PRINTED = re.compile(r"\{'(?P<first>loss|train_runtime)': ")
_WHOLE, _UPDATES = "train_runtime", "updates of the run"
_PACE, _RATE = "train_speed(s/it)", "train_speed(iter/s)"
_ROUNDED = 0.0005
_FIRST = 2  # updates, of which a bar that is drawn late may show any
_TIMED = {"step_s", "generation_s", "wait_s", "update_s"}
_WRITTEN_S = 0.1  # between rows that were written together: a history that was converted, say
_NO_REWARD = {"step", "prompt", "completion", "advantage", "completion_tokens", "images"}


class Rows:
    """``{'loss': ..., 'reward': ...}`` a row, and the progress bar of the updates beside them."""

    open = False

    def __init__(self, start: str) -> None:
        self._before: list[Metrics] = []  # of runs before this one
        self._begin()

    def _begin(self) -> None:
        self._rows: list[Metrics] = []
        self._elapsed: dict[int, dict[int, float]] = {}  # by the bar's last update
        self._again: dict[int, set[int]] = {}  # updates whose bar was drawn anew, as a row does
        self._summary: dict[str, float] = {}

    def feed(self, line: int, text: str) -> Iterable[Metrics]:
        """Rows wait for `close`: only then is it known how many updates each is the mean of."""
        for bar in _BAR.finditer(text):
            last, done = int(bar["last"]), int(bar["done"])
            elapsed = self._elapsed.setdefault(last, {})
            alone = bool(self._rows) and len(self._elapsed) == 1
            if alone and done <= 1 and max(elapsed, default=0) > _FIRST:
                self._before.extend(self._numbered())  # the only bar starts over: another run
                self._begin()
                elapsed = self._elapsed.setdefault(last, {})
            if 0 < done < last and done in elapsed:
                self._again.setdefault(last, set()).add(done)
            elapsed.setdefault(done, _seconds(bar["elapsed"]))
        printed = _PRINTED.search(text)
        if printed:
            values, complete = flat(text[printed.start() :])
            if not complete:
                raise RecordError("a printed mapping has no end")
            if printed["first"] == "loss":
                self._rows.append(Metrics(len(self._rows) + 1, values, line))
            else:
                self._summary = values
        return ()

    def close(self) -> Iterable[Metrics]:
        """The rows; those of a run that follows another begin anew."""
        return [*self._before, *self._numbered()]

    def _numbered(self) -> list[Metrics]:
        """A run's rows, numbered by the bar or the summary where these tell how many updates each
        holds."""
        last = max(self._elapsed, default=0)
        elapsed = self._elapsed.get(last, {})
        window = _window(max(elapsed, default=0), len(self._rows), self._again.get(last, set()))
        window = window or _summed(self._summary, len(self._rows))
        if window is None:
            return self._rows
        timed = []
        for row in self._rows:
            update = row.step * window
            values = {"updates of a row": float(window), **row.values}
            if update in elapsed and update - window in elapsed:
                each_s = (elapsed[update] - elapsed[update - window]) / window
                values.setdefault("step_time", each_s)
            timed.append(Metrics(update, values, row.line))
        if _WHOLE in self._summary and timed:
            values = {**timed[-1].values, **_of_run(self._summary, len(timed), window)}
            timed[-1] = replace(timed[-1], values=values)
        return timed


def _window(updates: int, rows: int, again: set[int]) -> int | None:
    """Updates a row; None where the bar does not settle it. again: where it was drawn anew."""
    if not rows or not updates:
        return None
    able = range(updates // (rows + 1) + 1, updates // rows + 1)
    if again:
        return min(again) if min(again) in able else None
    return able[0] if len(able) == 1 else None


def _summed(summary: Raw, rows: int) -> int | None:
    """Updates a row by the summary; None where that does not settle it."""
    least, most = _updates(summary)
    if not rows or not most:
        return None
    near = range(math.ceil(least / (rows + 1)), int(most / rows) + 1)
    able = [each for each in near if max(each * rows, least) <= min(each * (rows + 1) - 1, most)]
    return able[0] if len(able) == 1 else None


def _updates(summary: Raw) -> tuple[float, float]:
    """Of the run, at least and at most: their rate is rounded to three places."""
    whole_s, rate = (summary.get(key, 0.0) for key in (_WHOLE, "train_steps_per_second"))
    return whole_s * (rate - _ROUNDED), (whole_s * (rate + _ROUNDED) if rate else 0.0)


def _of_run(summary: Raw, rows: int, window: int) -> Raw:
    """Seconds and updates of the run, of which there are as many rows."""
    least, most = _updates(summary)
    logged = rows * window
    updates = logged if least <= logged else min(round((least + most) / 2), logged + window - 1)
    return {_WHOLE: summary[_WHOLE], _UPDATES: float(updates)}


def _seconds(clock: str) -> float:
    """Of ``MM:SS`` or ``H:MM:SS``."""
    seconds = 0
    for part in clock.split(":"):
        seconds = 60 * seconds + int(part)
    return float(seconds)


def derive(row: Row, raw: Raw, settings: Settings, overlapped: bool) -> None:
    """Phases out of the nested profile; which updates generate; rollouts of a batch."""
    if overlapped:
        row.pop("generation_s", None)
    if _PREPARE in raw and "step_s" in row:
        # forward and backward are the part of step_time beside the inputs
        row["update_s"] = max(row["step_s"] - raw[_PREPARE], 0.0)
        inside = [row.get(name, 0.0) for name in ("generation_s", "reward_s", "sync_s")]
        row["log_prob_s"] = max(raw[_PREPARE] - sum(inside), 0.0)
    window = raw.get("updates of a row") or setting(settings, "run.logging_steps")
    if window is not None:
        row["logged_steps"] = float(window)
    if "step_s" in row and not overlapped:
        row["generates"] = float("mean_new_tokens" in row)
    batch = setting(settings, "run.batch_rollouts")
    if batch is None and setting(settings, "run.nodes") == 1:
        rows, passes = (
            setting(settings, f"run.{key}") for key in ("micro_batch_rollouts", "generation_every")
        )
        batch = rows * passes if rows and passes else None
    if batch is not None and "mean_new_tokens" in row:
        row["rollouts"] = float(batch)


def follow(rows: Sequence[tuple[Row, Raw]], settings: Settings) -> None:
    """Seconds of steps from their mean so far, the clock or the whole run, where no step has its
    own; lengths of prompts, from the cumulative tokens, where each generation was logged."""
    _of_paces(rows)
    _of_clock(rows)
    _mean_of_run(rows)
    _of_numbers(rows)
    if setting(settings, "run.logging_steps") not in (None, 1):
        return
    before = 0.0 if rows and rows[0][1].get("num_tokens", 0.0) and _starts(rows) else None
    for row, raw in rows:
        if "num_tokens" not in raw:
            continue
        rollouts, mean = row.get("rollouts"), row.get("mean_new_tokens")
        if before is not None and rollouts and mean is not None:
            prompt = (raw["num_tokens"] - before) / rollouts - mean
            if prompt >= 0:
                row["mean_prompt_tokens"] = prompt
        before = raw["num_tokens"]


def _of_paces(rows: Sequence[tuple[Row, Raw]]) -> None:
    """From ms-swift's mean time of an update since the start, or its rate before 4.0, in a log that
    begins with its first update (trainers/patcher.py: add_train_message)."""
    done, past_s = rows[0][0]["step"] - 1 if rows else 0.0, 0.0
    start = done
    for row, raw in rows:
        pace, rate = raw.get(_PACE, 0.0), raw.get(_RATE, 0.0)
        each_s = pace or (1 / rate if rate > 0 else 0.0)
        if "step_s" in row or not each_s or row["step"] <= done:
            return
        whole_s, window = each_s * (row["step"] - start), row["step"] - done
        row.update(step_s=max(whole_s - past_s, 0.0) / window, logged_steps=window)
        row["generates"] = float("mean_new_tokens" in row)
        done, past_s = row["step"], whole_s


def _of_clock(rows: Sequence[tuple[Row, Raw]]) -> None:
    """Between the times at which two rows were logged, where nothing is timed (TRL before 0.26); an
    evaluation comes after the row of its update (transformers' Trainer), so is in the next one."""
    if any(not _TIMED.isdisjoint(row) for row, _ in rows):
        return
    logged = [row for row, _ in rows if "logged_s" in row and "mean_new_tokens" in row]
    for before, row in pairwise(logged):
        updates = row["step"] - before["step"]
        each_s = (row["logged_s"] - before["logged_s"]) / updates
        if each_s > _WRITTEN_S and not row.get("first"):
            row.update(step_s=each_s, generates=1.0)
            row["validation_inside"] = float("validation_s" in before)


def _of_numbers(rows: Sequence[tuple[Row, Raw]]) -> None:
    """Windows of rows whose numbers are its multiples, as of a history without settings."""
    numbers = [row["step"] for row, _ in rows if "mean_new_tokens" in row]
    window = numbers[0] if len(numbers) > 2 else 1.0
    if window > 1 and all(number == window * (i + 1) for i, number in enumerate(numbers)):
        for row, _ in rows:
            row.setdefault("logged_steps", window)


def _mean_of_run(rows: Sequence[tuple[Row, Raw]]) -> None:
    whole_s = max((raw.get(_WHOLE, 0.0) for _, raw in rows), default=0.0)
    if whole_s <= 0 or any("step_s" in row for row, _ in rows):
        return
    updates = max(rows[-1][1].get(_UPDATES, 0.0), rows[-1][0]["step"])
    for row, _ in rows:
        if "mean_new_tokens" in row:
            row.update(step_s=whole_s / updates, generates=1.0)


def _starts(rows: Sequence[tuple[Row, Raw]]) -> bool:
    """Whether the first row is the run's first: its count is no more than the next one adds."""
    seen = [raw["num_tokens"] for _, raw in rows if "num_tokens" in raw]
    return len(seen) > 1 and seen[0] <= 3 * (seen[1] - seen[0])


def rollouts(record: Record, origin: Origin) -> Iterable[Rollout]:
    """A completion; every further column is a reward."""
    text = record["completion"]
    if isinstance(text, list):  # a conversation
        text = "".join(str(m.get("content") or "") for m in text if isinstance(m, dict))
    if not isinstance(text, str):
        raise RecordError("completion is no text")
    rewards = [real(item) for key, item in record.items() if key not in _NO_REWARD]
    known = [item for item in rewards if item is not None]
    columns = {
        "characters": float(len(text)),
        "new_tokens": real(record.get("completion_tokens")),
        "reward": sum(known) if known else None,
        "trained": 1.0,
    }
    prompt = digest(record["prompt"])
    yield Rollout(whole(record["step"], "step"), prompt=prompt, columns=columns, text=text)
