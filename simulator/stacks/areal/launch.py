"""What AReaL's launch settings imply."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping

from rollcast.simulator.stacks.settings import Setting, Settings, value, whole

_DIMS = r"(?:[dtpce]\d{1,5})+"
_PART = re.compile(
    rf"(?:(?P<name>[a-z]+)[.:])?\(?(?:attn:)?(?P<dims>{_DIMS})(?:\|ffn:(?P<ffn>{_DIMS}))?\)?"
)
_SPLITS = {"fsdp": "fsdp2", "archon": "dtensor"}
_TRAINER = "cost.roofline.trainer"


def implied(settings: Settings) -> Iterable[Setting]:
    """What the layouts say (areal/api/alloc_mode.py), of ``allocation_mode`` or of ``backend`` of
    either role: ``sglang:d4t2+fsdp:d8`` is four engines of two GPUs, and a trainer on eight others;
    with ``|`` in the place of ``+``, on the same."""
    mode = settings.get("run.mode")
    if mode is not None:
        text = str(mode.value)
        match = re.fullmatch(
            rf"(?P<engines>[^+|()]+)(?P<sign>[+|])(?P<trainer>{_PART.pattern})", text
        )
        if match is not None:
            roles = [*_engines(mode, match["engines"]), *_trainer(mode, match["trainer"])]
            yield from roles
            yield from _placement(mode, match["sign"] == "|", roles, settings)
    engine = settings.get("run.engine_layout")
    roles = [*_engines(engine), *_trainer(settings.get("run.trainer_layout"))]
    yield from roles
    if engine is not None and "run.trainer_layout" in settings:
        shares = value(settings, "run.shares") == "colocation"
        yield from _placement(engine, shares, roles, settings)
    decoupled = settings.get("run.decoupled_loss")
    if decoupled is not None and decoupled.value is True:  # should_compute_prox_logp
        computes = value(settings, "run.proximal") != "loglinear"
        yield decoupled.implies("run.log_probs", computes)
    stepped, computed = settings.get("run.trainer_dtype"), settings.get("run.compute_dtype")
    if stepped and stepped.unsaid and stepped.value == "bf16" and computed:  # before 2.0
        yield computed.implies("run.trainer_dtype", computed.value)


def _engines(setting: Setting | None, text: str | None = None) -> Iterable[Setting]:
    """Of ``text``, or the setting's own."""
    match = None if setting is None else _PART.fullmatch(text or str(setting.value))
    if setting is None or match is None:
        return
    sizes = _sizes(match["dims"])
    yield setting.implies("cluster.replicas", sizes["d"])
    yield setting.implies("cluster.tensor_parallel", sizes["t"])
    yield setting.implies("run.rollout_gpus", math.prod(sizes[kind] for kind in "dtp"))
    if sizes["p"] > 1:
        yield setting.implies("run.engine_pipeline_parallel", sizes["p"])


def _trainer(setting: Setting | None, text: str | None = None) -> Iterable[Setting]:
    """A mode that does not name the trainer's backend takes FSDP, or Megatron for stages and
    experts."""
    match = None if setting is None else _PART.fullmatch(text or str(setting.value))
    if setting is None or match is None:
        return
    sizes, experts = _sizes(match["dims"]), _sizes(match["ffn"] or match["dims"])
    name = match["name"] or ("megatron" if sizes["p"] > 1 or experts["e"] > 1 else "fsdp")
    yield setting.implies("run.strategy", _SPLITS.get(name, name))
    yield setting.implies("cluster.trainer_gpus", math.prod(sizes[kind] for kind in "dtpc"))
    split = "sequence_parallel" if name == "fsdp" else "context_parallel"
    for kind, degree in (("t", "tensor_parallel"), ("p", "pipeline_parallel"), ("c", split)):
        yield setting.implies(f"{_TRAINER}.{degree}", sizes[kind])
    yield setting.implies(f"{_TRAINER}.expert_parallel", experts["e"])
    if name == "fsdp" and sizes["t"] > 1:  # the softmax in 32 bit is kept (vocab_parallel.py)
        yield setting.implies("run.logit_bytes", 8)


def _placement(
    said: Setting, shares: bool, roles: Iterable[Setting], settings: Settings
) -> Iterable[Setting]:
    """Whether both roles are on the same GPUs. On one machine with too few for both, the second is
    dealt those of the first again (``_allocate_gpus`` of areal/infra/scheduler/local.py, cbff54d,
    and launcher/local.py before), and no engine sleeps."""
    wanted = {one.key: one.value for one in roles}
    here = whole(settings, "run.gpus_per_node")
    one_machine = here is not None and whole(settings, "run.nodes") in (None, 1)
    both = [wanted.get(key) for key in ("run.rollout_gpus", "cluster.trainer_gpus")]
    again = not shares and one_machine and both == [here, here]
    yield said.implies("run.colocated", shares or again)
    if again:
        yield said.implies("run.free_engine", False)


def _sizes(dims: str) -> Mapping[str, int]:
    return dict.fromkeys("dtpce", 1) | {k: int(n) for k, n in re.findall(r"([dtpce])(\d+)", dims)}
