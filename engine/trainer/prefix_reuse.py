"""A prompt computed once for all its rollouts, forward and backward (arXiv 2606.01143).

Phase A runs the prefix and keeps each layer's keys and values. Phase B runs the suffixes as
ordinary microbatches that read those as leaves, so gradients add up in them. Phase C is one
backward of the prefix from the accumulated gradients. Over the reals the result is dense training:
the prefix's computation is the same for every rollout, and its gradient is linear in gK and gV.

Several groups go through the phases together, each with a prefix of its own: passes of few tokens
wait for the launches of their kernels. A prefix is the prompt without its last token. What limits
the gain: the head, and attention from suffix to prefix, are not shared.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache

from rollcast.engine.errors import UnsupportedModelError
from rollcast.engine.options import Backend, Checkpoint
from rollcast.engine.trainer import attention
from rollcast.engine.trainer.batch import Example
from rollcast.engine.trainer.mode import in_mode
from rollcast.engine.trainer.model import Forward, LogProbModel, Rows
from rollcast.engine.trainer.moe import RouterSums


@dataclass(slots=True)
class Prefix:
    """Prefixes between phases A and C. tokens: of each. roots: each layer's keys and values in
    phase A's graph. leaves: the same for phase B, [prefixes, kv_heads, most tokens, head_dim];
    their ``grad`` is gK and gV. routers: each prefix's sums, where the routers' loss counts.
    output: the decoder's, [prefixes, most tokens, hidden], in phase A's graph, where several ranks
    gather each layer's weights as the backward comes to the layer's output."""

    tokens: Sequence[int]
    roots: dict[int, tuple[Tensor, Tensor]]
    leaves: dict[int, tuple[Tensor, Tensor]]
    routers: Sequence[RouterSums]
    output: Tensor | None = None


class PrefixReuse:
    """Phases A, B and C on a model. offload: keeps phase A's activations in host memory until phase
    C. Raises UnsupportedModelError on a model that it is not exact for."""

    def __init__(
        self,
        runner: LogProbModel,
        *,
        backend: Backend = "attention",
        checkpoint: Checkpoint = "none",
        offload: bool = False,
    ) -> None:
        self.runner = runner
        self.backend = backend
        self.checkpoint = checkpoint
        self.offload = offload
        _refuse_layers(runner.model)
        if backend == "cache" and checkpoint != "none":
            raise UnsupportedModelError(
                "the cache backend cannot be checkpointed: Hugging Face drops the cache silently",
                "engine.trainer.checkpoint",
            )
        self._verify()

    @contextmanager
    def engaged(self) -> Iterator[None]:
        """The model attends through the shared prefix within; backwards run within too, as
        checkpointing computes layers again."""
        if self.backend == "cache":
            yield
            return
        model = self.runner.model
        implementation = model.config._attn_implementation
        model.set_attn_implementation(attention.NAME)
        try:
            yield
        finally:
            model.set_attn_implementation(implementation)

    def begin(self, prefixes: Sequence[Sequence[int]]) -> Prefix:
        """Phase A on the tokens of each prefix, with a graph if gradients are enabled. Padding on
        the right is seen by nothing. The cache backend takes one prefix."""
        rows = Rows.of(prefixes, self.runner.device)
        found: list[Any] = []

        def capture() -> tuple[Tensor]:
            output, *rest = self._capture(rows)
            found.extend(rest)
            return (output,)

        saved = offloaded(self.runner.device.type == "cuda") if self.offload else nullcontext()
        recompute = self.checkpoint != "none" and torch.is_grad_enabled()
        with self.runner.precision(), saved, self.runner.checkpointed(recompute):
            (output,) = self.runner.ranks.run(capture)
        roots, routers = found
        layers = self.runner.model.config.get_text_config().num_hidden_layers
        if sorted(roots) != list(range(layers)):
            raise UnsupportedModelError(
                f"{len(roots)} of {layers} layers gave keys and values; the shared-prefix layout "
                "needs softmax attention in every layer"
            )
        grad = torch.is_grad_enabled()
        leaves = {
            layer: (_leaf(key, grad), _leaf(value, grad)) for layer, (key, value) in roots.items()
        }
        by_layer = self.runner.ranks.by_layer and output.requires_grad
        tokens = [len(one) for one in prefixes]
        return Prefix(tokens, roots if grad else {}, leaves, routers, output if by_layer else None)

    def suffix(self, prefix: Prefix, examples: Sequence[Example], places: Sequence[int]) -> Forward:
        """Phase B on one microbatch; any number may follow, each with its backward. places: which
        prefix each example reads, in ascending order."""
        sequences = [[e.prompt[-1], *e.response[:-1]] for e in examples]
        rows = Rows.of(sequences, self.runner.device)
        width = rows.ids.shape[1]
        first = torch.tensor([prefix.tokens[place] for place in places], device=rows.ids.device)
        positions = first[:, None] + torch.arange(width, device=rows.ids.device)
        recompute = self.checkpoint == "all" and torch.is_grad_enabled()
        with self.runner.precision(), self.runner.checkpointed(recompute):
            output = self.runner.decode(
                rows.ids, position_ids=positions, **self._reading(prefix, places)
            )
            flat = [
                row * width + offset
                for row, e in enumerate(examples)
                for offset in range(len(e.response))
            ]
            log_probs = self.runner.log_probs(output.last_hidden_state, flat, examples)
            return Forward(log_probs, self.runner.router_sums(output, rows.valid))

    def finish(self, prefix: Prefix, extra_loss: Tensor | None = None) -> None:
        """Phase C: one backward of the prefix from phase B's gradients. extra_loss: the prefix's
        own scalar, such as its routers' loss."""
        tensors: list[Tensor] = []
        grads: list[Tensor | None] = []
        for layer, roots in prefix.roots.items():
            for root, leaf in zip(roots, prefix.leaves[layer], strict=True):
                if root.requires_grad and leaf.grad is not None:
                    tensors.append(root)
                    grads.append(leaf.grad)
        decoder = self.runner.decoder
        if not tensors and any(p.requires_grad for p in decoder.parameters()):
            raise RuntimeError("phase C has no gradient to carry back: was phase B run backward?")
        if extra_loss is not None and extra_loss.requires_grad:
            tensors.append(extra_loss)
            grads.append(None)
        if prefix.output is not None:
            tensors.append(prefix.output)
            grads.append(torch.zeros_like(prefix.output))
        if tensors:  # none where the output head alone is trained
            torch.autograd.backward(tensors, grads)
        prefix.roots.clear()
        prefix.leaves.clear()
        prefix.output = None

    def _capture(
        self, rows: Rows
    ) -> tuple[Tensor, dict[int, tuple[Tensor, Tensor]], list[RouterSums]]:
        """The decoder's output, each layer's keys and values, and each prefix's routers' sums."""
        if self.backend == "attention":
            capture = attention.PrefixCapture()
            output = self.runner.decode(rows.ids, rollcast_prefix=capture)
            roots = capture.layers
        else:
            cache: Any = DynamicCache(config=self.runner.model.config)
            output = self.runner.decode(rows.ids, past_key_values=cache, use_cache=True)
            roots = {i: (layer.keys, layer.values) for i, layer in enumerate(cache.layers)}
        sums = [self.runner.router_sums(output, valid) for valid in rows.by_row]
        return output.last_hidden_state, roots, [one for one in sums if one is not None]

    def _reading(self, prefix: Prefix, places: Sequence[int]) -> dict[str, Any]:
        if self.backend == "attention":
            return {"rollcast_prefix": attention.PrefixRead(prefix.leaves, prefix.tokens, places)}
        rows, cache = len(places), DynamicCache(config=self.runner.model.config)
        for layer, (key, value) in prefix.leaves.items():
            cache.update(key.expand(rows, -1, -1, -1), value.expand(rows, -1, -1, -1), layer)
        return {"past_key_values": cache, "use_cache": True}

    def _verify(self) -> None:
        """Compares a few tokens with dense log-probabilities, to refuse a model whose positions,
        mask or attention this layout does not cover."""
        vocabulary = self.runner.model.config.get_text_config().vocab_size
        tokens = [(7 * i + 3) % vocabulary for i in range(16)]
        examples = [_probe(tokens[:6], tokens[6:9]), _probe(tokens[:6], tokens[9:14])]
        prefixes, places = [tokens[:5]], [0, 0]
        if self.backend == "attention":  # the others, with another prefix, a cache does not take
            prefixes, places = [tokens[:5], tokens[2:5]], [0, 0, 1]
            examples.append(_probe(tokens[2:6], tokens[1:4]))
        with in_mode(self.runner.model, training=False), torch.no_grad():
            dense = self.runner.run(partial(self.runner.dense, examples)).log_probs
            with self.engaged():
                suffixes = partial(self.suffix, self.begin(prefixes), examples, places)
                shared = self.runner.run(suffixes).log_probs
        worst = (dense - shared).abs().max().item()
        if not worst <= (0.5 if self.runner.low_precision else 1e-3):
            raise UnsupportedModelError(
                f"{type(self.runner.model).__name__} gives other log-probabilities with a shared "
                f"prefix than without (by {worst:.2g}); use the dense layout"
            )


def offloaded(pinned: bool) -> AbstractContextManager[Any]:
    """Within, what graphs keep for their backward goes to host memory, but for weights, which are
    on the device anyhow, or are gathered again."""
    to_host = torch.autograd.graph.save_on_cpu(pin_memory=pinned)

    def pack(kept: Tensor) -> Any:
        owner = kept if kept._base is None else kept._base
        return kept if isinstance(owner, nn.Parameter) else to_host.pack_hook(kept)

    def unpack(packed: Any) -> Tensor:
        found: Tensor = packed if isinstance(packed, Tensor) else to_host.unpack_hook(packed)
        return found

    hooks: AbstractContextManager[Any] = torch.autograd.graph.saved_tensors_hooks(pack, unpack)
    return hooks


def _probe(prompt: Sequence[int], response: Sequence[int]) -> Example:
    zeros = [0.0] * len(response)
    return Example(0, prompt, response, zeros, [True] * len(response), 0.0)


def _leaf(x: Tensor, grad: bool) -> Tensor:
    return x.detach().contiguous().requires_grad_(grad)


def _refuse_layers(model: nn.Module) -> None:
    """Refuses layers without full softmax attention, and randomness in the forward."""
    config: Any = model.config
    config = config.get_text_config()
    name = type(model).__name__
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    window = getattr(config, "sliding_window", None)
    if window is not None and getattr(config, "use_sliding_window", True):
        uses = "sliding_attention" in kinds or not getattr(config, "layer_types", None)
        if uses:
            kinds.add("sliding_attention")
    other = sorted(kinds - {"full_attention"})
    if other:
        raise UnsupportedModelError(
            f"{name} has layers of {', '.join(other)}; the shared-prefix layout covers full "
            "attention alone: use the dense layout"
        )
    random = getattr(config, "attention_dropout", 0.0) or getattr(config, "router_jitter_noise", 0)
    if random or any(isinstance(m, nn.Dropout) and m.p > 0 for m in model.modules()):
        raise UnsupportedModelError(
            f"{name} has dropout or router noise, which differs between the rollouts of a group; "
            "set it to 0, or use the dense layout"
        )
