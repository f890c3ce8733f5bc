"""What the trainer, weight sync and the loop between them take, from a run's spans and updates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import pandas as pd

from rollcast.calibration.fits.robust import Fit, FloatArray, fit, needed, quantiles
from rollcast.calibration.folder import RunFolder
from rollcast.simulator.costs.base import TrainLoad
from rollcast.simulator.costs.fitted import Packing
from rollcast.simulator.costs.trainer.packing import prefix_pass_tokens
from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.results.schema import PREFIX_PASSES

MIN_UPDATES = 5
# The real trainer's own default, where a scenario leaves it out.
_MICROBATCH_TOKENS = 4096
_TOGETHER = "prefix_microbatch_tokens"


@dataclass(frozen=True)
class Updates:
    """Updates of several runs.

    table: one row an update, times at the reference speed. tokens: fed to the model, padding
        included where the run tells it; computed: without padding. pairs: as
        `simulator.costs.fitted.Fed` counts them, 0 where the packing is not known. rollouts:
        trained on. microbatches: 0 where the run does not say. train_s: without log_prob_s, the
        seconds of its log-prob passes. shared: whether in the layout with a shared prefix.
    skips_equal_rewards: whether the trainer left out rollouts that it was given. padded: whether
        the runs tell padding.
    """

    table: pd.DataFrame
    skips_equal_rewards: bool
    padded: bool

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, name: str) -> FloatArray:
        return self.table[name].to_numpy(dtype=float)

    def of_layout(self, shared: bool) -> Updates:
        """Those with a shared prefix, or without."""
        return replace(self, table=self.table[self.table["shared"] == shared])


@dataclass(frozen=True)
class UpdateFit:
    """The fit of one layout: of the update, and of its log-prob passes per computed token."""

    fit: Fit
    log_prob_per_token_s: float
    ratio: float
    ratios: FloatArray

    def cost(self) -> dict[str, float]:
        """A mapping such as ``cost.dense``, of the median update."""
        return {
            "fixed_s": self.ratio * self.fit["fixed"],
            "per_token_s": self.ratio * self.fit["token"],
            "per_rollout_s": self.ratio * self.fit["rollout"],
            "per_microbatch_s": self.ratio * self.fit["microbatch"],
            "per_pair_s": self.ratio * self.fit["pair"],
            "log_prob_per_token_s": self.log_prob_per_token_s,
        }


def collect(runs: Sequence[RunFolder], pulses: Sequence[FloatArray]) -> Updates:
    """The updates of ``runs``.

    pulses: of each run, over the reference; shape (steps, 2). Raises ScenarioError (``RUN_DIR``)
    where tables disagree.
    """
    padded = all(run.updates is not None for run in runs)
    rows = [
        row for run, pulse in zip(runs, pulses, strict=True) for row in _rows(run, pulse, padded)
    ]
    if len(rows) < MIN_UPDATES:
        raise ScenarioError("RUN_DIR", f"{len(rows)} updates are too few; at least {MIN_UPDATES}")
    return Updates(pd.DataFrame(rows), any(map(_skips, runs)), padded)


def _rows(run: RunFolder, pulse: FloatArray, padded: bool) -> Iterator[dict[str, float]]:
    """The updates of one run. padded: whether all runs tell padding."""
    steps, updates, layouts = run.steps, run.updates, run.layouts
    count = len(steps["step"])
    for file, by_run in (("updates.jsonl", updates), ("decisions.jsonl", layouts)):
        if by_run is not None and len(by_run) != count:
            raise ScenarioError(
                "RUN_DIR", f"{run.path}/{file} holds {len(by_run)} steps, steps.csv {count}"
            )
    packed = packing(run, updates if padded else None)
    batches = {} if packed is None else loads(run, skips=_skips(run))
    for i in range(count):
        step, slower = int(steps["step"][i]), float(pulse[i, 1])
        row = {"pairs": 0.0, "microbatches": 0.0, "shared": layouts[i] == "shared_prefix"}
        if updates is None:
            tokens, log_prob_s = _from_spans(run, step)
            row |= {"tokens": tokens, "computed": tokens, "rollouts": steps["trained_rollouts"][i]}
        else:
            update = updates[i]
            if update["updates"] == 0:  # nothing was left to train on
                continue
            log_prob_s, computed = float(update["log_prob_s"]), float(update["computed_tokens"])
            row |= {"tokens": computed, "computed": computed, "rollouts": update["rollouts"]}
            if padded:
                row["tokens"] = computed + update["padding_tokens"]
                row["microbatches"] = update["microbatches"]
            if packed is not None and step in batches:
                row["pairs"] = packed.fed(batches[step]).pairs
        row["train_s"] = (float(steps["train_s"][i]) - log_prob_s) / slower
        yield {**row, "log_prob_s": log_prob_s / slower}


def loads(run: RunFolder, skips: bool) -> dict[int, TrainLoad]:
    """What each update of a run trained on, by step; without groups of equal rewards if ``skips``.

    Of a rollout's segments, one a turn and one a resume, the last counts. Groups are in the order
    of their numbers, which may not be the run's.
    """
    table = run.rollouts
    there = table["trained"] > 0
    tokens = table["total_tokens"] + table.get("observation_tokens", 0)
    names = ("trained_step", "group", "index", "attempt", "prompt_tokens", "reward")
    rows = zip(
        *(column[there].tolist() for column in (tokens, *(table[n] for n in names))), strict=True
    )
    last: dict[tuple[int, int, int], tuple[int, int, int, float]] = {}
    for total, step, group, index, attempt, prompt, reward in rows:
        key, segment = (int(step), int(group), int(index)), (attempt, total, prompt, reward)
        if key not in last or segment[:2] >= last[key][:2]:
            last[key] = segment
    batches: dict[int, dict[int, list[tuple[int, int, float]]]] = {}
    for (step, group, _), (_, total, prompt, reward) in last.items():
        rollouts = batches.setdefault(step, {}).setdefault(group, [])
        rollouts.append((int(prompt), int(total), reward))
    layouts = dict(zip(run.steps["step"].tolist(), run.layouts, strict=False))
    by_step = {}
    for step, by_group in batches.items():
        made = [by_group[group] for group in sorted(by_group)]
        groups = [(rollouts[0][0], [n for _, n, _ in rollouts]) for rollouts in made]
        equal = [len({reward for *_, reward in rollouts}) == 1 for rollouts in made]
        load = TrainLoad(groups, layouts.get(step) == "shared_prefix", equal)
        by_step[step] = load.that_teaches() if skips else load
    return by_step


def _skips(run: RunFolder) -> bool:
    updates = run.updates or []
    given = run.steps["trained_rollouts"].tolist()
    return any(line["rollouts"] < n for line, n in zip(updates, given, strict=False))


def _from_spans(run: RunFolder, step: int) -> tuple[float, float]:
    """Tokens of the step's update, and the seconds of its log-prob passes."""
    spans = run.spans
    mine = (spans["track"] == "trainer") & (spans["step"] == step)
    passes = mine & (spans["kind"] == "log_prob")
    seconds = float((spans["end_s"] - spans["start_s"])[passes].sum())
    return float(spans["tokens"][mine].max(initial=0)), seconds


def fit_updates(
    updates: Updates, shared: bool, probed: Updates | None = None, level: float = 1.0
) -> UpdateFit | None:
    """The cost of an update in one layout; None where too few were measured in it.

    probed: updates of a probe, of many shapes, which then give the coefficients; the runs' own
    updates give their level, as they meet the caches and the memory that rollouts leave. level:
    what to take where the runs have too few of this layout.
    """
    chosen = updates.of_layout(shared)
    shapes = chosen if probed is None else probed.of_layout(shared)
    if len(shapes) < MIN_UPDATES:
        return None
    seconds = np.maximum(shapes["train_s"], 1e-9)
    terms = _terms(shapes)
    if probed is None:
        kept = needed(terms, seconds, ("fixed", "rollout", "microbatch", "pair"))
    elif updates.padded:  # the probe's shapes tell them apart
        kept = ("token", "fixed", "microbatch", "pair")
    else:  # of the runs, and so of a forecast, nothing else is known
        kept = ("token", "fixed")
    solution = fit({name: terms[name] for name in kept}, seconds, np.arange(len(seconds)))
    judged = chosen if len(chosen) >= MIN_UPDATES else shapes
    passes = judged["log_prob_s"] / np.maximum(judged["computed"], 1.0)
    own_terms = _terms(judged)
    fitted = sum(solution[name] * own_terms[name] for name in kept)
    ratios = np.maximum(judged["train_s"], 1e-9) / np.maximum(fitted, 1e-9)
    ratio = float(np.median(ratios)) if judged is chosen else level
    return UpdateFit(solution, float(np.median(passes)), ratio, ratios / float(np.median(ratios)))


def _terms(updates: Updates) -> dict[str, FloatArray]:
    return {
        "token": updates["tokens"],
        "fixed": np.ones(len(updates)),
        "rollout": updates["rollouts"],
        "microbatch": updates["microbatches"],
        "pair": updates["pairs"],
    }


def describe(fit: UpdateFit) -> dict[str, Any]:
    """Standard errors, residuals and the number of samples for the fitted file."""
    errors = {f"per_{n}_s": fit.ratio * fit.fit.error(n) for n in fit.fit.names if n != "fixed"}
    if "fixed" in fit.fit.names:
        errors["fixed_s"] = fit.ratio * fit.fit.error("fixed")
    return {
        "standard_errors": errors,
        "residual_ratio": quantiles(fit.ratios),
        "updates": len(fit.ratios),
    }


def packing(run: RunFolder, updates: Sequence[Mapping[str, Any]] | None) -> Packing | None:
    """How the run's trainer made the microbatches of these updates; None without any, as where runs
    do not tell padding."""
    if updates is None:
        return None
    options = run.section("engine", "trainer")
    given = {key.name: options.get(key.name) for key in fields(Packing)}
    try:
        asked = given.pop(_TOGETHER)
        packed = Packing.from_mapping(given, "engine.trainer", _MICROBATCH_TOKENS)
        if not any(PREFIX_PASSES in update for update in updates):
            return packed  # of a version that computed each prefix by itself
        if options.get("prefix_backend") == "cache":
            return packed
        room = prefix_pass_tokens(packed.microbatch_tokens, asked)
        return Packing.from_mapping(packed.to_mapping() | {_TOGETHER: room}, "engine.trainer")
    except ScenarioError as error:
        raise run.bad_scenario(error) from None


def overheads(runs: Sequence[RunFolder], pulses: Sequence[FloatArray]) -> dict[str, FloatArray]:
    """Seconds of each step outside rollout and update: ``sync``, ``to_train`` (from the last
    rollout's end to the trainer's start) and ``to_rollout`` (all the rest: what is neither rollout,
    train, sync nor that, from one step's end to the next one's). pulses: as in `collect`."""
    samples: dict[str, list[FloatArray]] = {"sync": [], "to_train": [], "to_rollout": []}
    for run, pulse in zip(runs, pulses, strict=True):
        steps, spans = run.steps, run.spans
        of_trainer = spans["track"] == "trainer"
        begin = np.full(len(steps["step"]), np.inf)
        np.minimum.at(begin, spans["step"][of_trainer], spans["start_s"][of_trainer])
        to_train = np.where(np.isfinite(begin), begin - steps["rollout_end_s"], 0.0)
        # A simulated run tells the switch apart; there it lies before the trainer's start.
        rest = steps["step_s"] - steps["rollout_s"] - steps["train_s"] - steps["sync_s"]
        samples["sync"].append(steps["sync_s"] / pulse[:, 0])
        samples["to_train"].append(np.maximum(to_train, 0.0) / pulse[:, 0])
        samples["to_rollout"].append(
            np.maximum(rest - np.maximum(to_train, 0.0), 0.0) / pulse[:, 0]
        )
    return {name: np.concatenate(parts) for name, parts in samples.items()}
