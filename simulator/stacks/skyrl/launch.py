"""What SkyRL's launch settings imply."""

from __future__ import annotations

from collections.abc import Iterable

from rollcast.simulator.stacks.settings import Setting, Settings, value, whole


def implied(settings: Settings) -> Iterable[Setting]:
    """GPUs of the roles (placement), which share them with the policy where that is said."""
    yield from _logits(settings)
    colocated = settings.get("run.colocated")
    nodes, gpus = whole(settings, "run.nodes") or 1, whole(settings, "run.gpus_per_node")
    if gpus:
        yield settings["run.gpus_per_node"].implies("cluster.trainer_gpus", nodes * gpus)
    if colocated is None or colocated.value is True:
        return
    servers, engines = settings.get("run.engine_servers"), whole(settings, "cluster.replicas")
    if servers is not None and isinstance(servers.value, list) and servers.value:
        engines = len(servers.value)
        yield servers.implies("cluster.replicas", engines)
    if engines:
        per = (whole(settings, "cluster.tensor_parallel") or 1) * (
            whole(settings, "run.engine_pipeline_parallel") or 1
        )
        total = engines * per * (whole(settings, "run.data_parallel") or 1)
        cause = settings.get("cluster.replicas") or servers
        if cause is not None:
            yield cause.implies("run.rollout_gpus", total)
    if value(settings, "run.share_reference") is False:
        own = whole(settings, "run.reference_gpus_per_node")
        if own:
            machines = whole(settings, "run.reference_nodes") or 1
            yield settings["run.reference_gpus_per_node"].implies(
                "run.reference_gpus", machines * own
            )


def _logits(settings: Settings) -> Iterable[Setting]:
    """Bytes of a logit. Under FSDP (workers/model_wrapper.py, utils/torch_utils.py) 16 bit logits
    are divided in place, flash-attn's cross-entropy writes its gradient where they are, and that
    of the division is a second tensor; an entropy with a gradient keeps its softmax and log-softmax
    of each chunk. Under Megatron (distributed/megatron/model_utils.py) its Float16Module makes 32
    bit logits, which ChunkedDistributedLogprob keeps beside a gradient in 32 bit."""
    strategy, chunk = settings.get("run.strategy"), settings.get("run.logits_chunk_tokens")
    if strategy is None:
        return
    if strategy.value != "megatron":
        graded = value(settings, "run.entropy") is True
        yield strategy.implies("run.logit_bytes", 10 if graded else 4)
        yield strategy.implies("run.scored_logit_bytes", 2)
    elif chunk is not None and whole(settings, "run.logits_chunk_tokens"):
        yield chunk.implies("run.logit_bytes", 8)
        yield chunk.implies("run.scored_logit_bytes", 6)
