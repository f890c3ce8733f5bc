"""What the GPU, its link and its host reach in the parts of an update, measured."""

import math
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from benchmarks.gpu.cases import Case
from benchmarks.gpu.forecast import attention_flop
from benchmarks.gpu.models import build, config_of
from benchmarks.gpu.shapes import ATTENTION, BATCHES, ROUTED, products
from rollcast.simulator.costs.presets.models import Model

Values = dict[str, Any]
ENOUGH_S = 0.03
LIST_BYTES = 2**30


def synchronize(device: torch.device) -> None:
    """Waits for the device's queue."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds(call: Callable[[], Any], device: torch.device, enough_s: float = ENOUGH_S) -> float:
    """Of one call, the median of three turns of as many as take ``enough_s``; two calls warm up."""
    for _ in range(2):
        call()
    synchronize(device)
    began_s = time.perf_counter()
    call()
    synchronize(device)
    once_s = max(time.perf_counter() - began_s, 1e-7)
    count = min(2000, max(1, math.ceil(enough_s / once_s)))
    turns = []
    for _ in range(3):
        began_s = time.perf_counter()
        for _ in range(count):
            call()
        synchronize(device)
        turns.append((time.perf_counter() - began_s) / count)
    return statistics.median(turns)


def facts(case: Case, device: torch.device) -> Values:
    """The machine, and the attention kernels that are chosen on it."""
    import transformers

    from rollcast.engine.trainer.kernels import CudaFlashKernel, agrees_with_plain, kernel_for
    from rollcast.engine.trainer.packed import has_kernel

    found: Values = {
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "cpus": os.cpu_count(),
        "threads": torch.get_num_threads(),
    }
    for dtype in (torch.bfloat16, torch.float32):
        short = str(dtype).removeprefix("torch.")
        for width in (64, 128):
            like = torch.zeros(1, 1, 1, width, device=device, dtype=dtype)
            found[f"kernel {short} {width}"] = type(kernel_for(like)).__name__
        found[f"varlen {short}"] = has_kernel(device, dtype)
    if device.type == "cuda":
        agrees = agrees_with_plain(CudaFlashKernel(), device, torch.bfloat16, 128)
        found["flash agrees"] = agrees
        known = torch.cuda.get_device_properties(device)
        found |= {
            "gpu": known.name,
            "memory_bytes": known.total_memory,
            "multiprocessors": known.multi_processor_count,
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),
            "tf32": torch.backends.cuda.matmul.allow_tf32,
        }
        free, total = torch.cuda.mem_get_info(device)
        found["context_bytes"] = total - free - torch.cuda.memory_reserved(device)
        found["total_bytes"] = total
    return found


def matmul(case: Case, device: torch.device) -> Values:
    """Flop a second of products as layers have them: the weight transposed, as in nn.Linear."""
    found: Values = {}
    for name, shape, dtype in products():
        rows, inner, columns = (max(1, n // 64) for n in shape) if case.tiny else shape
        kind = getattr(torch, dtype)
        a = torch.randn(rows, inner, device=device, dtype=kind)
        w = torch.randn(columns, inner, device=device, dtype=kind)
        out = torch.empty(rows, columns, device=device, dtype=kind)

        def product(a: Any = a, w: Any = w, out: Any = out) -> None:
            torch.mm(a, w.t(), out=out)

        found[f"{name} flop_per_s"] = 2.0 * rows * inner * columns / seconds(product, device)
        del a, w, out, product
    return found


def copies(case: Case, device: torch.device) -> Values:
    """Bytes a second; on the GPU those read and written."""
    size = LIST_BYTES // (256 if case.tiny else 1)
    one = torch.ones(size // 2, device=device, dtype=torch.bfloat16)
    other = torch.empty_like(one)
    found: Values = {
        "on_gpu bytes_per_s": 2 * size / seconds(lambda: other.copy_(one), device),
        "add bytes_per_s": 3 * size / seconds(lambda: torch.add(one, one, out=other), device),
        "silu bytes_per_s": 2 * size / seconds(lambda: functional.silu(one), device),
    }
    half = size // 4
    places = {"pageable": torch.ones(half, dtype=torch.bfloat16)}
    if device.type == "cuda":
        places["pinned"] = torch.ones(half, dtype=torch.bfloat16).pin_memory()
    there = one[:half]
    for name, here in places.items():
        down = seconds(lambda here=here: here.copy_(there), device)  # type: ignore[misc]
        up = seconds(lambda here=here: there.copy_(here), device)  # type: ignore[misc]
        found[f"{name} down bytes_per_s"] = 2 * half / down
        found[f"{name} up bytes_per_s"] = 2 * half / up
    fresh = seconds(lambda: there.to("cpu", copy=True), device)
    found["new pageable down bytes_per_s"] = 2 * half / fresh
    return found | _adam(size, device)


def _adam(size: int, device: torch.device) -> Values:
    """Bytes a second that AdamW moves, 28 a parameter; weights of a quarter of ``size`` numbers."""
    parameters = [torch.zeros(size // 64, device=device, requires_grad=True) for _ in range(16)]
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    found: Values = {}
    kinds = {"adam": {"fused": True}, "foreach adam": {"foreach": True}}
    for name, how in kinds.items():
        optimizer = torch.optim.AdamW(parameters, lr=1e-6, **how)  # type: ignore[arg-type]
        moved = 28 * sum(p.numel() for p in parameters)
        found[f"{name} bytes_per_s"] = moved / seconds(optimizer.step, device)
        del optimizer
    return found


def attention(case: Case, device: torch.device) -> Values:
    """Flop a second of a forward and backward over the causal half (a backward is two forwards), by
    kernel; ``default`` is the one that scaled_dot_product_attention takes."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    found: Values = {}
    kernels = {"default": None, "flash": SDPBackend.FLASH_ATTENTION}
    if device.type == "cuda":
        kernels["cudnn"] = SDPBackend.CUDNN_ATTENTION
    for name, (sequences, heads, tokens, width) in ATTENTION.items():
        tokens = tokens // 64 if case.tiny else tokens
        shape = (sequences, heads, tokens, width)

        def draw(shape: Any = shape) -> torch.Tensor:
            drawn = torch.randn(shape, device=device, dtype=torch.bfloat16)
            return drawn.requires_grad_(True)

        q, k, v, grad = draw(), draw(), draw(), draw().detach()
        for kernel, backend in kernels.items():

            def both(q: Any = q, k: Any = k, v: Any = v, grad: Any = grad) -> None:
                out = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
                torch.autograd.grad(out, (q, k, v), grad)

            try:
                if backend is None:
                    taken = seconds(both, device)
                else:
                    with sdpa_kernel([backend]):
                        taken = seconds(both, device)
            except RuntimeError as error:  # not on this device, or not this shape
                found[f"{name} {kernel} error"] = str(error)[:200]
                continue
            flop = attention_flop(sequences, heads, tokens, width)
            found[f"{name} {kernel} flop_per_s"] = flop / taken
    return found


def launches(case: Case, device: torch.device) -> Values:
    """Seconds of an operation on one number: one after the other, and each waited for."""
    one = torch.zeros(1, device=device)
    add = seconds(lambda: one.add_(1.0), device)

    def waited() -> None:
        one.add_(1.0)
        synchronize(device)

    return {
        "launch_s": add,
        "launch_and_wait_s": seconds(waited, device),
        "read_s": seconds(lambda: one.item(), device),
    }


@torch.no_grad()
def layers(case: Case, device: torch.device) -> Values:
    """Seconds of one layer's forward over a few rows of one token, eagerly and as a replayed CUDA
    graph: attention sees that token alone."""
    model = build(case, device)
    decoder = model.base_model
    config, found = model.config, Values()
    for tokens in BATCHES:
        hidden = torch.randn(tokens, 1, config.hidden_size, device=device, dtype=torch.bfloat16)
        places = torch.zeros(1, 1, dtype=torch.long, device=device)
        turned = decoder.rotary_emb(hidden, places)

        def forward(hidden: Any = hidden, turned: Any = turned, places: Any = places) -> Any:
            rows = hidden
            for layer in decoder.layers:
                rows = layer(
                    rows, attention_mask=None, position_ids=places, position_embeddings=turned
                )
                rows = rows[0] if isinstance(rows, tuple) else rows
            return rows

        count = len(decoder.layers)
        found[f"{tokens} tokens eager_s"] = seconds(forward, device) / count
        if device.type == "cuda":
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                for _ in range(3):
                    forward()
            torch.cuda.current_stream().wait_stream(stream)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                forward()
            found[f"{tokens} tokens graph_s"] = seconds(graph.replay, device) / count
            del graph
    return found


def experts(case: Case, device: torch.device) -> Values:
    """Seconds of one layer's experts with their router, a forward without gradients, and a forward
    with its backward: one expert after another, as transformers 4 runs them, and in grouped
    products, as transformers 5 does."""
    spec, kind = case.spec, getattr(torch, case.dtype)
    torch.manual_seed(0)
    ways = {"one by one": _OneByOne(spec), "grouped": _grouped(case)}
    found: Values = {}
    for name, block in ways.items():
        block = block.to(device=device, dtype=kind)
        for tokens in ROUTED:
            count = tokens // 64 if case.tiny else tokens
            rows = torch.randn(1, count, spec.hidden, device=device, dtype=kind)
            rows.requires_grad_(True)

            def forward(rows: Any = rows, block: Any = block) -> None:
                with torch.no_grad():
                    block(rows)

            def both(rows: Any = rows, block: Any = block) -> None:
                block(rows).float().square().mean().backward()

            found[f"{tokens} tokens {name} forward_s"] = seconds(forward, device)
            found[f"{tokens} tokens {name} passes_s"] = seconds(both, device)
            block.zero_grad(set_to_none=True)
        ways[name] = None
        del block, rows
    return found


class _OneByOne(torch.nn.Module):
    """Experts as modules, each over the rows that are routed to it."""

    def __init__(self, spec: Model) -> None:
        super().__init__()
        self.chosen = spec.experts_per_token
        self.router = torch.nn.Linear(spec.hidden, spec.experts, bias=False)
        self.experts = torch.nn.ModuleList(
            torch.nn.ModuleDict(
                {
                    "gate": torch.nn.Linear(spec.hidden, spec.moe_intermediate, bias=False),
                    "up": torch.nn.Linear(spec.hidden, spec.moe_intermediate, bias=False),
                    "down": torch.nn.Linear(spec.moe_intermediate, spec.hidden, bias=False),
                }
            )
            for _ in range(spec.experts)
        )

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """hidden: (1, tokens, width); so is what comes back."""
        rows = hidden.flatten(0, 1)
        chances = self.router(rows).float().softmax(-1)
        weights, experts = chances.topk(self.chosen)
        weights = (weights / weights.sum(-1, keepdim=True)).to(rows.dtype)
        out = torch.zeros_like(rows)
        routed = functional.one_hot(experts, len(self.experts)).permute(2, 1, 0)
        for index in routed.sum((1, 2)).nonzero().flatten():
            place, row = torch.where(routed[index])
            expert: Any = self.experts[int(index)]
            its = rows[row]
            made = expert["down"](functional.silu(expert["gate"](its)) * expert["up"](its))
            out.index_add_(0, row, made * weights[row, place, None])
        return out.view_as(hidden)


def _grouped(case: Case) -> torch.nn.Module:
    """A layer's block of transformers, by grouped products."""
    from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeSparseMoeBlock

    config = config_of(case.model, case.spec)
    config._experts_implementation = "grouped_mm"
    block: torch.nn.Module = Qwen3MoeSparseMoeBlock(config)
    for weight in block.parameters():
        torch.nn.init.normal_(weight, std=0.02)
    return block


def host_adam(case: Case, device: torch.device) -> Values:
    """Bytes a second that AdamW moves in host memory, 28 a parameter, on all cores."""
    count = 200_000 if case.tiny else 200_000_000
    cpu = torch.device("cpu")
    parameter = torch.zeros(count, requires_grad=True)
    parameter.grad = torch.ones(count)
    optimizer = torch.optim.AdamW([parameter], lr=1e-6, fused=True)
    taken = seconds(optimizer.step, cpu)
    other = torch.empty(count)
    copied = seconds(lambda: other.copy_(parameter.detach()), cpu)
    return {
        "host_adam_bytes_per_s": 28 * count / taken,
        "host_copy_bytes_per_s": 8 * count / copied,
        "threads": torch.get_num_threads(),
    }
