"""Which microbatches fit into the memory of a trainer's GPUs, and what to do where none does."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property

from rollcast.simulator.costs.memory.ledger import REFUSED_BELOW, chance_of
from rollcast.simulator.costs.presets.provenance import figures
from rollcast.simulator.costs.trainer.memory import TrainerMemory, Use
from rollcast.simulator.costs.trainer.step_options import FIELD
from rollcast.simulator.errors import ScenarioError

UNSAID_TOKENS = 32_768  # of a microbatch where nobody sets it, at most
ANY_TOKENS = 10**9  # of a microbatch that rows alone limit


@dataclass(frozen=True)
class TrainerRoom(TrainerMemory):
    """A trainer's memory with the microbatches that fit into it."""

    @cached_property
    def _fixed_bytes(self) -> float:
        return self.peak_bytes(0)

    @cached_property
    def _largest(self) -> int:
        """The most tokens whose peak is within the budget, by halving an interval."""
        low, high = 0, 1
        if self.peak_bytes(1) > self._budget_bytes:
            return 0
        while self.peak_bytes(high) <= self._budget_bytes:
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            if self.peak_bytes(middle) <= self._budget_bytes:
                low = middle
            else:
                high = middle
        return low

    def largest_microbatch_tokens(self) -> int:
        """Tokens of the largest dense microbatch that fits on one GPU; 0 where none does."""
        return self._largest

    @property
    def configured_spread(self) -> float:
        """Standard deviation, as a share, of what the configuration fixes."""
        known = figures("memory")
        spread: float = known.configured_spread
        if self.backend == "deepspeed":
            spread = known.configured_spread_with_deepspeed
        return spread

    def _chance(self, tokens: int, prefix_tokens: int = 0) -> float:
        """Chance that a microbatch fits where it is the only one and nothing else is on the GPUs:
        no less than a ledger says of a scenario."""
        known, budget = figures("memory"), self._budget_bytes
        phases = self.phases(Use(tokens, tokens, prefix_tokens, False)).values()
        return min(
            chance_of(held.values(), budget, known.spread, self.configured_spread)
            for held in phases
        )

    @cached_property
    def _states_fit(self) -> bool:
        return self._chance(1) >= REFUSED_BELOW

    def _check_states(self) -> None:
        if self._states_fit:
            return
        shard = "" if self.kept == "fsdp" else f" states shared by all ({FIELD}.sharding: fsdp),"
        raise ScenarioError(
            "cluster.trainer_gpus",
            f"out of memory before the first token: weights, gradients and optimiser states of "
            f"{self.model.name} take {self._fixed_bytes / 1e9:.0f} GB of each of {self.gpus} x "
            f"{self.gpu.name} ({self._budget_bytes / 1e9:.0f} GB usable); give the trainer more "
            f"GPUs,{shard} adapters ({FIELD}.weights: lora), or a split model "
            f"({FIELD}.tensor_parallel, expert_parallel, pipeline_parallel)",
        )

    def _budget_tokens(self, longest: int) -> int:
        """Tokens of a microbatch, at least those of the longest sequence."""
        budget = self.microbatch_tokens
        if budget is None:
            budget = ANY_TOKENS if self.microbatch_rollouts else self._unsaid_tokens
        return max(budget, longest)

    @cached_property
    def _unsaid_tokens(self) -> int:
        """Tokens of a microbatch where nobody says how many."""
        if self.peak_bytes(UNSAID_TOKENS) <= self._budget_bytes:
            return UNSAID_TOKENS  # looking for the largest takes long
        return min(UNSAID_TOKENS, self.largest_microbatch_tokens())

    @cached_property
    def _fitted(self) -> dict[int, int]:
        """The longest sequence found to fit so far, by its prefix: shorter ones do, too."""
        return {}

    def _check_fits(self, longest: int, prefix: int) -> None:
        """Raises ScenarioError where it is clear that the longest sequence does not fit."""
        self._check_states()
        if longest <= self._fitted.get(prefix, 0):
            return
        if self._chance(longest, prefix) >= REFUSED_BELOW:
            self._fitted[prefix] = longest
            return
        beside = f" beside a shared prefix of {prefix:,}" if prefix else ""
        raise ScenarioError(
            "cluster.trainer_gpus",
            f"the trainer is out of memory: a microbatch of the longest rollout alone, of "
            f"{longest:,} tokens{beside} needs {self.peak_bytes(longest, prefix) / 1e9:.0f} GB of "
            f"each {self.gpu.name} ({self._budget_bytes / 1e9:.0f} GB usable); the largest "
            f"microbatch that fits is {self.largest_microbatch_tokens():,} tokens on {self.gpus} "
            f"GPUs; {self._what_would_fit(longest, prefix)}",
        )

    def _what_would_fit(self, tokens: int, prefix: int) -> str:
        """Advice for a microbatch that does not."""

        def fits(**changes: int | str) -> bool:
            with suppress(ScenarioError):  # a split that does not divide
                changed = replace(self, **changes)  # type: ignore[arg-type]
                return changed.peak_bytes(tokens, prefix) <= self._budget_bytes
            return False

        enough = [n for n in (2, 4, 8) if fits(gpus=n * self.gpus)]
        remedies = [f"{enough[0] * self.gpus} trainer GPUs"] if enough else []
        if self.recompute != "full" and fits(recompute="full"):
            remedies.append(f"{FIELD}.recompute: full")
        split = 2 * self.tensor_parallel
        if fits(tensor_parallel=split):
            remedies.append(f"{FIELD}.tensor_parallel: {split} on these")
        remedies.append("fewer tokens (workload.max_new_tokens)")
        return f"what would fit: {', or '.join(remedies)}"
