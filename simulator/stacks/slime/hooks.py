"""Inside slime: the function of ``--rollout-function-path``, driven by the simulator's loop.

slime samples (``slime.rollout.sglang_rollout``: ``generate_and_rm`` samples and rewards one
response, ``abort`` stops every engine); the loop decides what is launched, when a step ends, what
is kept and what is trained on. Written against slime v0.3.1 and read against its main branch of
August 2026; slime is imported when a function is called, never before.
"""

from __future__ import annotations

import asyncio
import copy
import uuid
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from rollcast.simulator.core.plan import Placement
from rollcast.simulator.core.rollout import Ending, Key, Rollout, Segment, VersionTokens
from rollcast.simulator.core.world import Ended, Event, TrainBatch
from rollcast.simulator.errors import RunError
from rollcast.simulator.stacks.driver import Driver, HandedOver, read_state, write_state
from rollcast.simulator.stacks.exported import Exported, read_exported, trained_size
from rollcast.simulator.stacks.slime.limits import LIMITS
from rollcast.simulator.stacks.slime.samples import from_plain_sample, plain_sample

TAG = "rollcast"
"""Key of a sample's metadata: its group and index, and the rewards of its advantage's baseline."""

EPSILON = 1e-6
"""slime's, beside a standard deviation (``_post_process_rewards``)."""

_ENDINGS: dict[str, Ending] = {"completed": "stop", "truncated": "length", "failed": "stop"}
_NORMALISED = ("grpo", "gspo", "cispo", "reinforce_plus_plus_baseline")
_REFUSED = (
    *("group_rm", "dynamic_sampling_filter_path", "buffer_filter_path"),
    "rollout_all_samples_process_path",
)


@dataclass(slots=True)
class _Flight:
    """A rollout in flight: its sample, the task, the tokens that it had, and may have in all."""

    rollout: Rollout
    sample: Any
    start_s: float
    before: int
    limit: int
    task: Any = None


class SlimeWorld(HandedOver):
    """A world of slime's engines.

    args: slime's. data_source: prompts come from it, one group at a time, in order.
    """

    name = "slime"

    def __init__(self, args: Any, data_source: Any, exported: Exported) -> None:
        super().__init__()
        from slime.rollout import sglang_rollout

        self.shape = exported.shape
        self.rollout_id = 0
        self.next_index = 0
        self.prompts: dict[int, Any] = {}
        self.samples: dict[Key, Any] = {}
        self._args = args
        self._source = data_source
        self._slime = sglang_rollout
        self._run = sglang_rollout.run
        self._flying: dict[Key, _Flight] = {}

    # Rollouts

    def submit(self, rollouts: Sequence[Rollout], placement: Placement = "router") -> None:
        """Starts a task for each; slime's own semaphore takes them in this order."""
        if placement != "router":
            raise RunError(f"slime's router decides on placement, and {placement} is asked for")
        flights = [self._flight(rollout) for rollout in rollouts]
        self._run(self._start(flights))

    def _flight(self, rollout: Rollout) -> _Flight:
        if rollout.key in self._flying:
            raise RunError(f"{rollout} is already in flight")
        sample = self.samples.get(rollout.key)
        if sample is None or rollout.new_tokens == 0:
            sample = self.samples[rollout.key] = self._fresh(rollout)
        if sample.response_length != rollout.new_tokens:
            raise RunError(f"{rollout} has {sample.response_length} tokens in slime")
        limit = self._cap
        if rollout.allowance is not None:
            limit = min(limit, rollout.new_tokens + rollout.allowance)
        flight = _Flight(rollout, sample, self.now_s, rollout.new_tokens, limit)
        self._flying[rollout.key] = flight
        return flight

    def _fresh(self, rollout: Rollout) -> Any:
        """A sample of the group's prompt, which the data source is asked for once."""
        if rollout.group not in self.prompts:
            [group] = self._source.get_samples(1)
            self.prompts[rollout.group] = copy.deepcopy(group[0])
        sample = copy.deepcopy(self.prompts[rollout.group])
        sample.index = self.next_index
        self.next_index += 1
        sample.metadata = {
            **(sample.metadata or {}),
            TAG: {"group": rollout.group, "index": rollout.index, "attempt": rollout.attempt},
        }
        if hasattr(sample, "session_id"):
            sample.session_id = str(uuid.uuid4())
        return sample

    @property
    def _cap(self) -> int:
        cap: int = self._args.rollout_max_response_len
        return cap

    async def _start(self, flights: Sequence[_Flight]) -> None:
        state = self._slime.GenerateState(self._args)
        for flight in flights:
            params = {**state.sampling_params, "max_new_tokens": flight.limit}
            if getattr(self._args, "sglang_enable_deterministic_inference", False):
                params["sampling_seed"] = self._args.rollout_seed + flight.rollout.index
            flight.task = asyncio.create_task(self._one(flight.sample, params))
            state.pendings.add(flight.task)  # where slime's abort looks for what it stops

    async def _one(self, sample: Any, params: dict[str, Any]) -> list[Any]:
        """One response and its reward, as slime's abort expects a group to be."""
        return [await self._slime.generate_and_rm(self._args, sample, params, evaluation=False)]

    def wait(self, until_s: float | None = None) -> list[Event]:
        """Until a response ends; where none is in flight, what the stack did meanwhile."""
        if not self._flying:
            return self._trained()
        done = self._run(self._first(until_s))
        ended = sorted(key for key, flight in self._flying.items() if flight.task in done)
        return [Ended(self._take(key)) for key in ended]

    async def _first(self, until_s: float | None) -> set[Any]:
        state = self._slime.GenerateState(self._args)
        seconds = None if until_s is None else max(0.0, until_s - self.now_s)
        tasks = [flight.task for flight in self._flying.values()]
        done, _ = await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        state.pendings -= done
        return done

    def abort(self, keys: Collection[Key] | None = None, for_good: bool = False) -> list[Segment]:
        """Stops every engine, as slime does. Raises RunError where only some are to be stopped."""
        if keys is not None and set(keys) != set(self._flying):
            raise RunError("slime aborts all rollouts at once, and some of them are to run on")
        if self._flying:
            self._run(self._abort())
        return [self._take(key) for key in sorted(self._flying)]

    async def _abort(self) -> None:
        state = self._slime.GenerateState(self._args)
        await self._slime.abort(self._args, self.rollout_id)
        await asyncio.wait([flight.task for flight in self._flying.values()])
        state.reset()

    def _take(self, key: Key) -> Segment:
        """What a task that is done made of its rollout. Raises RunError where it failed."""
        flight = self._flying.pop(key)
        [sample] = flight.task.result()
        if isinstance(sample, list):
            raise RunError("the custom generate function returns several samples of one rollout")
        rollout = flight.rollout
        self.samples[key] = sample
        status = sample.status.value
        ending: Ending = _ENDINGS.get(status, "aborted")
        if ending == "length" and flight.limit <= sample.response_length < self._cap:
            ending = "budget"
            sample.status, sample.reward = type(sample.status).ABORTED, None
        made = sample.response_length - flight.before
        finished = ending in ("stop", "length")
        return Segment(
            rollout.group,
            rollout.index,
            rollout.attempt,
            0,
            max(len(sample.tokens) - sample.response_length, 0),
            (VersionTokens(self.version, made),) if made else (),
            ending,
            flight.start_s,
            self.now_s,
            reward=self._reward(sample) if finished else None,
        )

    def _reward(self, sample: Any) -> float:
        reward = sample.get_reward_value(self._args)
        if reward is None:
            raise RunError(f"sample {sample.index} came back from slime without a reward")
        return float(reward)

    # What is trained on

    def groups_of(self, batch: TrainBatch) -> list[list[Any]]:
        """A batch as slime takes it: its samples, group by group, masked as planned."""
        groups = []
        for group in batch.groups:
            chosen = [self.samples[rollout.key] for rollout in group.rollouts]
            for rollout, sample in zip(group.rollouts, chosen, strict=True):
                sample.metadata[TAG]["rewards"] = list(group.baseline_rewards)
                if batch.mask_before_version is not None:
                    _mask(sample, rollout.tokens_before(batch.mask_before_version))
            groups.append(chosen)
        return groups

    def keep_only(self, groups: Collection[int]) -> None:
        """Forgets every other group."""
        self.prompts = {group: s for group, s in self.prompts.items() if group in groups}
        self.samples = {key: s for key, s in self.samples.items() if key[0] in groups}

    # Between two steps

    def state(self) -> dict[str, Any]:
        """Its samples, as plain data."""
        return {
            "next_index": self.next_index,
            "prompts": [[group, plain_sample(s)] for group, s in self.prompts.items()],
            "samples": [[*key, plain_sample(s)] for key, s in self.samples.items()],
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Goes on from a `state`. Raises RunError for anything else."""
        kind = self._slime.Sample
        try:
            self.next_index = int(state["next_index"])
            prompts, samples = state["prompts"], state["samples"]
            self.prompts = {group: from_plain_sample(kind, s) for group, s in prompts}
            self.samples = {(g, i): from_plain_sample(kind, s) for g, i, s in samples}
        except (KeyError, TypeError, ValueError) as error:
            raise RunError(f"the saved samples cannot be read: {error}") from None


def _mask(sample: Any, tokens: int) -> None:
    """Leaves the first ``tokens`` of a response out of the loss."""
    mask = [1] * sample.response_length if sample.loss_mask is None else list(sample.loss_mask)
    sample.loss_mask = [0] * tokens + mask[tokens:]


class Adapter:
    """What an exported file gives slime: a rollout function, a data source that saves the policies'
    state with a checkpoint, and rewards normalised group by group.

    driver: None before the first call.
    """

    def __init__(self, exported: Exported) -> None:
        self.exported = exported
        self.driver: Driver | None = None
        self._world: SlimeWorld | None = None
        self._restored: dict[str, Any] | None = None
        self._states: dict[int, dict[str, Any]] = {}

    @classmethod
    def read(cls, path: Path) -> Adapter:
        """By the plan in a file. Raises ScenarioError."""
        return cls(read_exported(path))

    def generate_rollout(
        self, args: Any, rollout_id: int, data_source: Any, evaluation: bool = False
    ) -> Any:
        """slime's rollout function: samples until the plan's batch is whole.

        Raises RunError for arguments that contradict the plan, and as the loop does.
        """
        from slime.rollout import sglang_rollout

        if evaluation:
            return sglang_rollout.generate_rollout(args, rollout_id, data_source, evaluation=True)
        driver, world = self._begin(args, data_source)
        world.rollout_id = rollout_id
        groups = world.groups_of(driver.next_batch(rollout_id))
        if getattr(args, "save", None) is not None:
            state = {**driver.state(), "samples": world.state()}
            self._states = {**dict(list(self._states.items())[-1:]), rollout_id: state}
        if getattr(args, "rollout_sample_filter_path", None) is not None:
            sglang_rollout.load_function(args.rollout_sample_filter_path)(args, groups)
        metrics = {f"rollcast/{name}": value for name, value in driver.figures.items()}
        return sglang_rollout.RolloutFnTrainOutput(samples=groups, metrics=metrics)

    def _begin(self, args: Any, data_source: Any) -> tuple[Driver, SlimeWorld]:
        if self.driver is None or self._world is None:
            self._check(args)
            self._world = SlimeWorld(args, data_source, self.exported)
            self.driver = Driver(self.exported, self._world, LIMITS.check_step)
            if self._restored is not None:
                self._world.load_state(self._restored.get("samples", {}))
                self.driver.load_state(self._restored)
        return self.driver, self._world

    def _check(self, args: Any) -> None:
        """Raises RunError where slime's arguments are not those of the plan."""
        for name in _REFUSED:
            if getattr(args, name, None):
                raise RunError(
                    f"{_flag(name)} has no place beside this rollout function; leave it out"
                )
        first = self.exported.first
        wanted = {
            "rollout_batch_size": first.batch.groups,
            "n_samples_per_prompt": trained_size(first),
            "rollout_max_response_len": self.exported.max_new_tokens,
        }
        for name, value in wanted.items():
            if getattr(args, name) != value:
                raise RunError(
                    f"{_flag(name)} is {getattr(args, name)}, and the plan was made for {value}; "
                    "use the exported arguments, or export again"
                )
        if not args.partial_rollout:
            raise RunError("--partial-rollout is missing; slime would drop what it interrupts")

    # Rewards

    def post_process_rewards(self, args: Any, samples: Sequence[Any]) -> tuple[Any, Any]:
        """slime's ``--custom-reward-post-process-path``: (raw, normalised), as its own does, but
        group by group whatever their sizes are, and over the rewards that the plan says."""
        raw = [sample.get_reward_value(args) for sample in samples]
        if args.advantage_estimator not in _NORMALISED or not args.rewards_normalization:
            return raw, raw
        scaled = args.grpo_std_normalization and args.advantage_estimator != _NORMALISED[-1]
        normal = []
        for sample, reward in zip(samples, raw, strict=True):
            rewards = sample.metadata[TAG]["rewards"]
            value = reward - fmean(rewards)
            if scaled:
                value /= (stdev(rewards) if len(rewards) > 1 else 0.0) + EPSILON
            normal.append(value)
        return raw, normal

    # Saving

    def save(self, folder: str | None, rollout_id: int) -> None:
        """Writes the state after ``rollout_id`` beside slime's own of the data source."""
        state = self._states.get(rollout_id)
        if folder is None or state is None:
            return
        write_state(state_path(folder, rollout_id), state)

    def load(self, folder: str | None, rollout_id: int | None) -> None:
        """Loads the state after ``rollout_id``, if any. Raises RunError for an unreadable file."""
        if folder is None or rollout_id is None:
            return
        self._restored = read_state(state_path(folder, rollout_id))

    def data_source(self) -> type:
        """slime's ``--data-source-path``: its own, which saves and loads this state too."""
        adapter = self
        plain: Any = _plain_data_source()

        class DataSource(plain):  # type: ignore[misc]
            """slime's data source, and the policies' state."""

            def save(self, rollout_id: int) -> None:
                """Saves both."""
                super().save(rollout_id)
                adapter.save(self.args.save, rollout_id)

            def load(self, rollout_id: int | None = None) -> None:
                """Loads both."""
                super().load(rollout_id)
                adapter.load(self.args.load, rollout_id)

        return DataSource


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def state_path(folder: str, rollout_id: int) -> Path:
    """Where the state after a step is, in a checkpoint folder of slime's."""
    return Path(folder) / "rollout" / f"rollcast_{rollout_id}.json"


def _plain_data_source() -> Any:
    """slime's class, which its main branch has moved."""
    try:
        from slime.data.data_source import RolloutDataSourceWithBuffer
    except ModuleNotFoundError:
        from slime.rollout.data_source import RolloutDataSourceWithBuffer
    return RolloutDataSourceWithBuffer
