"""verl's V1 trainer loop on exported plans, with servers that sleep instead of sampling and no
model: ``python tests/stacks_verl/loop.py OUT EXPORT...`` writes OUT, a list of what was seen.

Real: Hydra's configuration, the trainer's loop, data loader, TransferQueue, agent loops, load
balancer, reward loop, replay buffer or sampler, and the advantages. One process for all exports,
since most of the time goes into imports.
"""

import asyncio
import json
import math
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from benchmarks.in_verl.run import LOG, Setup, environment, overrides, write_model, write_prompts
from rollcast.simulator.stacks.exported import PLAN_FILE

TOKENS_A_SECOND = 200.0
SETTLING_S = 600.0
BETWEEN, WITHIN = 0.5, 0.4
"""Spreads of log lengths between prompts and within."""


def prepare(folder: Path) -> Setup:
    """Model, prompts and environment variables, before anything of verl is imported."""
    setup = Setup(folder / "model", folder / "prompts.parquet")
    write_model(setup.model)
    write_prompts(setup.prompts, count=400)
    os.environ.update(environment(setup, folder))
    return setup


def configuration(export: Path, setup: Setup, out: Path) -> Any:
    """The exported arguments as a shell reads them, and a user's own, composed by Hydra."""
    import verl
    from hydra import compose, initialize_config_dir
    from omegaconf import OmegaConf

    script = 'source "$0"; printf "%s\\n" "${ROLLCAST_ARGS[@]}"'
    said = subprocess.run(
        ["bash", "-c", script, str(export / "args.sh")], capture_output=True, text=True, check=True
    )
    own = [*overrides(setup, out), "trainer.rollout_data_dir=null"]
    own.append(f"reward.custom_reward_function.path={Path(__file__).with_name('rewards.py')}")
    plan = export / PLAN_FILE
    if plan.is_file() and json.loads(plan.read_text("utf-8"))["policy"].startswith("pods"):
        own.append("reward.custom_reward_function.name=some_fail")
    # The trainer's own log-probabilities need its workers: the servers' stand for them.
    own.append("algorithm.rollout_correction.bypass_mode=True")
    folder = Path(verl.__file__).parent / "trainer" / "config"
    with initialize_config_dir(str(folder), version_base=None):
        config = compose("ppo_trainer", [*said.stdout.splitlines(), *own])
    config.transfer_queue.enable = True
    OmegaConf.resolve(config)
    return config


class Server:
    """A server: a response takes its tokens' time, and ends early where it is aborted."""

    def __init__(self, cap: int) -> None:
        self.cap, self.step, self.asked = cap, 0, 0
        self.go, self.stop = asyncio.Event(), asyncio.Event()
        self.go.set()

    async def generate(
        self, request_id: str, prompt_ids: list[int], sampling_params: Any, **_: Any
    ) -> Any:
        """Tokens drawn by the prompt, the number of requests, and what it may have."""
        from verl.workers.rollout.replica import TokenOutput

        await self.go.wait()
        step, stop = self.step, self.stop
        limit = int(sampling_params.get("max_tokens") or self.cap)
        self.asked += 1
        own, prompts = random.Random(self.asked), random.Random(str(prompt_ids[:6]))
        drawn = 3.6 + prompts.gauss(0, BETWEEN) + own.gauss(0, WITHIN)
        wanted = max(1, min(limit, int(math.exp(drawn))))
        began = time.monotonic()
        try:
            await asyncio.wait_for(stop.wait(), wanted / TOKENS_A_SECOND)
            made = min(wanted, int((time.monotonic() - began) * TOKENS_A_SECOND))
        except TimeoutError:
            made = wanted
        return TokenOutput(
            token_ids=[own.randrange(3, 90) for _ in range(made)],
            log_probs=[-1.0] * made,
            stop_reason="completed" if made == wanted else "aborted",
            num_preempted=0,
            extra_fields={"global_steps": step},
        )

    async def update(self, step: int) -> None:
        """New weights."""
        self.step = step

    async def abort(self) -> None:
        """Ends every response, and lets none in."""
        self.go.clear()
        self.stop.set()

    async def resume(self) -> None:
        """Lets them in again."""
        self.stop = asyncio.Event()
        self.go.set()


def watched(base: type) -> type:
    """The trainer with servers of ours, without workers, and a list of the batches it got."""
    import ray
    import transfer_queue
    from verl.experimental.reward_loop import RewardLoopManager
    from verl.workers.rollout.llm_server import LLMServerClient
    from verl.workers.rollout.router import GlobalRequestLoadBalancer

    class Watched(base):  # type: ignore[misc,valid-type]
        def _setup(self) -> None:
            self._init_tokenizer()
            self._init_dataloader()
            self._init_dump_executor()
            self.global_steps, self.seen, self.launched = 0, [], 0
            self.teacher_model_manager = self.distillation_config = None
            self.resource_pool_manager = SimpleNamespace(get_n_gpus=lambda: 1)
            self.reward_loop_manager = RewardLoopManager(self.config, rm_resource_pool=None)
            actor = ray.remote(Server).options(max_concurrency=2000, num_cpus=0)
            cap = self.config.data.max_response_length
            self.servers = servers = [actor.remote(cap) for _ in range(2)]
            named = {f"server {i}": server for i, server in enumerate(servers)}
            balancer = ray.remote(GlobalRequestLoadBalancer).remote(servers=named)

            def client(client_cls: Any = LLMServerClient) -> Any:
                return client_cls(config=self.config, load_balancer_handle=balancer)

            def every(name: str, *given: Any) -> None:
                ray.get([getattr(server, name).remote(*given) for server in servers])

            self.llm_server_manager = SimpleNamespace(get_client=client)
            self.checkpoint_manager = SimpleNamespace(
                update_weights=lambda step: every("update", step),
                abort_replicas=lambda: every("abort"),
                resume_generation_replicas=lambda: every("resume"),
                sleep_replicas=lambda: None,
            )

        def _submit_batch_to_rollout(self, batch: Any) -> int:
            launched: int = super()._submit_batch_to_rollout(batch)
            self.launched += launched
            return launched

        def _balance_batch(self, batch: Any, metrics: Any, **_: Any) -> Any:
            kept = transfer_queue.kv_list("train")["train"]
            figures = {k: v for k, v in metrics.items() if k.startswith("rollcast/")}
            rewards = transfer_queue.kv_batch_get(
                keys=batch.keys, partition_id="train", select_fields=["rm_scores"]
            )["rm_scores"]
            self.seen.append(
                {
                    "keys": list(batch.keys),
                    "rewards": [float(row.sum()) for row in rewards.unbind()],
                    "spans": [[t["min_global_steps"], t["max_global_steps"]] for t in batch.tags],
                    "lengths": [t["response_len"] for t in batch.tags],
                    "prompts": sum(bool(tag.get("is_prompt")) for tag in kept.values()),
                    "figures": figures,
                }
            )
            return batch

        def _compute_old_log_prob(self, batch: Any, metrics: Any) -> Any:
            return batch

        def _update_actor(self, batch: Any, metrics: Any) -> Any:
            time.sleep(0.3)
            return batch

        def _compute_metrics(self, batch: Any, metrics: Any, timing_raw: Any, **_: Any) -> None:
            metrics.update({f"timing_s/{name}": spent for name, spent in timing_raw.items()})
            data = transfer_queue.kv_batch_get(
                keys=batch.keys, partition_id="train", select_fields=["advantages"]
            )
            sizes = [float(row.abs().mean()) for row in data["advantages"].unbind()]
            self.seen[-1]["advantages"] = sizes

    Watched.__name__ = base.__name__
    return Watched


def fit(export: Path, setup: Setup, out: Path) -> dict[str, Any]:
    """Runs one export to its end; what its trainer saw."""
    import ray
    import transfer_queue
    from verl.trainer.ppo.v1 import AgentLoopManagerTQ, get_trainer_cls

    out.mkdir(parents=True)
    os.environ["VERL_FILE_LOGGER_PATH"] = str(out / LOG)
    config = configuration(export, setup, out)
    mode = config.trainer.v1.trainer_mode
    trainer: Any = watched(get_trainer_cls(mode))(config=config)
    trainer.init()
    manager = AgentLoopManagerTQ.create(
        config=config,
        llm_client=trainer.get_llm_client(),
        teacher_client=None,
        reward_loop_worker_handles=trainer.get_reward_handles(),
    )
    trainer.fit(manager)
    settle(trainer)
    for actor in (*manager.agent_loop_workers, *trainer.servers, *trainer.get_reward_handles()):
        ray.kill(actor)
    for partition, kept in (transfer_queue.kv_list() or {}).items():
        if kept:
            transfer_queue.kv_clear(partition_id=partition, keys=list(kept))
    sampler = type(trainer.replay_buffer).__name__
    return {"mode": mode, "sampler": sampler, "steps": trainer.seen, "launched": trainer.launched}


def settle(trainer: Any) -> None:
    """Lets the rollouts that are left end. What a worker writes while it is killed would stay in
    the queue beyond the clearing of its keys, and pass for a tag of the next export's."""
    import transfer_queue

    trainer.checkpoint_manager.resume_generation_replicas()
    until = time.monotonic() + SETTLING_S
    while any(
        tag.get("status") in ("pending", "running")
        for kept in (transfer_queue.kv_list() or {}).values()
        for tag in kept.values()
    ):
        assert time.monotonic() < until, "rollouts of a run that has ended do not end"
        time.sleep(0.1)


def main(out: Path, exports: list[Path]) -> None:
    """Runs all of them."""
    folder = out.parent / "loop"
    folder.mkdir()
    setup = prepare(folder)
    import ray
    import transfer_queue

    ray.init(
        address="local",
        num_cpus=64,
        include_dashboard=False,
        object_store_memory=200_000_000,
        log_to_driver=False,
    )
    try:
        transfer_queue.init(configuration(exports[0], setup, folder).transfer_queue)
        seen = [fit(export, setup, folder / export.name) for export in exports]
        out.write_text(json.dumps(seen), "utf-8")
    finally:
        transfer_queue.close()
        ray.shutdown()


if __name__ == "__main__":
    main(Path(sys.argv[1]), [Path(name) for name in sys.argv[2:]])
