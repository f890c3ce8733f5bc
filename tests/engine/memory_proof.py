"""The trainer's memory on one of many GPUs, by torch's own tracker, with tensors that have no
content: ``python memory_proof.py MODEL RANKS TOKENS [offload] [lora] [shared]`` prints GiB of an
update's passes and of its optimiser step; ``device``: of the passes without the states, which
offloading leaves in host memory.

The trainer is as it is built: its sharding, its passes, its optimiser. Only what would read a
figure or talk to another rank answers by itself. Device memory is that of a fake CPU, whose
attention keeps nothing that is quadratic, as flash attention does on a GPU. Not in it:
fragmentation, NCCL's buffers, CUDA's context, the kernels' own workspaces.
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker, _FSDPRefType
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers import AutoModelForCausalLM, Qwen2Config

from rollcast.engine.adapter_options import LoraConfig
from rollcast.engine.edges import SampledGroup, SampledRollout
from rollcast.engine.options import TrainerConfig
from rollcast.engine.room import Devices, peak
from rollcast.engine.trainer import attention, passes, sharded, trainer
from rollcast.engine.trainer.adapters import inject
from rollcast.engine.trainer.kernels import CpuFlashKernel
from rollcast.engine.trainer.model import LogProbModel
from rollcast.engine.trainer.prefix_reuse import PrefixReuse
from rollcast.engine.trainer.sharded import Sharded, Sharding

GIB = float(1 << 30)
STATES = (_FSDPRefType.SHARDED_PARAM, _FSDPRefType.SHARDED_GRAD, _FSDPRefType.OPT)
SHAPES = {
    "7b": (3584, 18944, 28, 28, 4, 152_064),
    "32b": (5120, 27648, 64, 40, 8, 152_064),
    "small": (512, 1536, 3, 8, 2, 16_384),
}
"""Hidden size, MLP, layers, heads, key-value heads and vocabulary, as Qwen2.5 has them."""


class Tracker(FSDPMemTracker):
    """Watches the peak of what is no state as well."""

    beside = 0

    def _update_peak_stats(self, peak_state: Any) -> None:
        super()._update_peak_stats(peak_state)
        for held in self._curr_mem_snap.values():
            states = sum(held.get(kind, 0) for kind in STATES)
            self.beside = max(self.beside, held["Total"] - states)


class Alone(Sharded):
    """A rank that hears from the others what it says itself."""

    group = None
    tracker: Any = None

    def run(self, call: Any) -> Any:
        if self.tracker is not None:
            self.tracker.reset_mod_stats()  # of the microbatch before; peaks stay
        return super().run(call)

    def exchange(self, value: Any) -> list[Any]:
        return [value] * self.count


def config_of(name: str, tokens: int) -> Any:
    hidden, mlp, layers, heads, kv_heads, vocabulary = SHAPES[name]
    return Qwen2Config(
        hidden_size=hidden,
        intermediate_size=mlp,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        vocab_size=vocabulary,
        max_position_embeddings=tokens + 1,
        tie_word_embeddings=False,
        use_cache=False,
        architectures=["Qwen2ForCausalLM"],
    )


def forecast(name: str, ranks: int, tokens: int, **options: Any) -> dict[str, float]:
    """The peak of the same update by the ledger, GiB: parts that are states, and all."""
    config = TrainerConfig(checkpoint="all", microbatch_tokens=tokens, **options)
    with tempfile.TemporaryDirectory() as folder:
        config_of(name, tokens).save_pretrained(folder)
        devices = Devices(80 << 30, 1.0, ranks=ranks)
        found = peak(Path(folder), config, "bfloat16", devices)
    states = ("weights", "master weights", "gradients", "optimizer")
    return {
        "passes": sum(found.values()) / GIB,
        "device": sum(size for name, size in found.items() if name not in states) / GIB,
    }


def measure(
    name: str, ranks: int, tokens: int, sharding: Sharding, **options: Any
) -> dict[str, float]:
    """Peak GiB of a rank: ``passes`` (forward and backward) and ``optimizer`` (its step), of the
    second update of two, each of two microbatches of one rollout; ``shared``: of two rollouts, half
    of each a prompt that they share."""
    config = config_of(name, tokens)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
    mesh = init_device_mesh("cpu", (ranks,))
    replaced: dict[tuple[Any, str], Any] = {
        (sharded, "init_device_mesh"): lambda *_: mesh,
        (passes, "read"): lambda figures: [0.0] * figures.numel(),
        (trainer, "read"): lambda figures: [0.0] * figures.numel(),
        (LogProbModel, "_check_head"): lambda self: None,
        (PrefixReuse, "_verify"): lambda self: None,
        (attention, "kernel_for"): lambda _: CpuFlashKernel(),
    }
    kept = {(owner, name): getattr(owner, name) for owner, name in replaced}
    try:
        for (owner, name), call in replaced.items():
            setattr(owner, name, call)
        lora = options.get("lora")
        dtype = torch.bfloat16 if lora else torch.float32
        with torch.device("meta"):
            model: Any = AutoModelForCausalLM.from_config(config, dtype=dtype)
            if lora:
                inject(model, lora, torch.float32)
        with FakeTensorMode(allow_non_fake_inputs=True):
            return _peaks(model.to_empty(device="cpu"), tokens, sharding, options)
    finally:
        for (owner, name), call in kept.items():
            setattr(owner, name, call)
        dist.destroy_process_group()


def _peaks(model: Any, tokens: int, sharding: Sharding, options: Any) -> dict[str, float]:
    made = Alone(model, "cpu", sharding)
    settings = {"checkpoint": "all", "microbatch_tokens": tokens} | options
    shared = settings.pop("shared", False)
    ours = trainer.Trainer(model, TrainerConfig(**settings), made)
    optimizer = ours._optimizer
    tracker = Tracker(made._root, optimizer)
    tracker.track_inputs(())
    made.tracker = tracker
    peaks: dict[str, float] = {}

    def note(what: str) -> None:
        totals = tracker.get_tracker_snapshot("peak")
        peaks[what] = max(parts["Total"] for parts in totals.values()) / GIB
        if what == "passes":
            peaks["device"] = tracker.beside / GIB
        now = tracker.get_tracker_snapshot("current")
        tracker._peak_mem_snap = now
        tracker._peak_mem = {device: parts["Total"] for device, parts in now.items()}

    optimizer.register_step_pre_hook(lambda *_: note("passes"))
    optimizer.register_step_post_hook(lambda *_: note("optimizer"))
    prompt = [3] * (tokens // 2 if shared else 16)
    response = [5] * (tokens + 1 - len(prompt))
    rollout = SampledRollout(response, [-1.0] * len(response), [0] * len(response), 1.0)
    rollouts = [rollout] * (4 if shared else 2 * made.count)
    group = SampledGroup(prompt, rollouts, [0.0, 1.0])
    for version in range(2):
        with tracker:
            ours.step([group], shared_prefix=shared, version=version)
        tracker.reset_mod_stats()
        tracker.beside = 0 if version == 0 else tracker.beside
    return peaks


def proved(name: str, ranks: str, tokens: str, *options: str) -> dict[str, float]:
    """What is measured, and what the ledger says of the same update."""
    sharding = Sharding(mixed=True, offload="offload" in options)
    lora = LoraConfig() if "lora" in options else None
    shape = name, int(ranks), int(tokens)
    found = measure(*shape, sharding, lora=lora, shared="shared" in options)
    ledger = forecast(*shape, lora=lora, offload=sharding.offload)
    return found | {f"{part}_forecast": gib for part, gib in ledger.items()}


if __name__ == "__main__":
    print(json.dumps(proved(*sys.argv[1:])))
