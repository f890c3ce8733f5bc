"""What an iteration of an engine takes by the roofline."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property

from rollcast.simulator.costs.base import CostModel, Curve, Iteration, Piece, plus, scaled
from rollcast.simulator.costs.engine.forward_pass import ForwardPass, Host
from rollcast.simulator.costs.engine.hosts import engine_presets
from rollcast.simulator.costs.engine.layout import EngineLayout
from rollcast.simulator.costs.engine.speculation import Speculation
from rollcast.simulator.costs.presets.gpus import Gpu
from rollcast.simulator.costs.presets.models import Model
from rollcast.simulator.costs.roofline.options import RooflineOptions


class EngineIterations(RooflineOptions, CostModel):
    """The engine's part of a :class:`RooflineCost`.

    An iteration is the sum of the layers' matrix products over all its tokens (weights read once;
    of a mixture, the experts that its tokens are expected to reach), attention of decoding rollouts
    (KV bytes) and of prefilling ones (the longer of pairs and KV bytes), the LM head for every
    rollout, a floor per layer, what the GPUs send each other
    (`simulator.costs.engine.communication`), and the host's time beside the GPUs. With
    ``speculative`` an iteration is a share of one that verifies
    (`simulator.costs.engine.speculation`). Without ``cuda_graphs`` the host launches every kernel,
    and the GPU's part takes ``launch_s_per_layer`` a layer at least, or
    ``recurrent_launch_s_per_layer``, and ``mixture_launch_s_per_layer`` one with experts, or
    ``latent_launch_s_per_layer`` one with experts and latent attention; with them it does so for
    more rollouts than the largest has, and an iteration that prefills takes the host
    ``prefill_launch_s_per_layer`` a layer. Where the sync brings adapters, the engine computes them
    too: ``adapter_s_per_layer`` more, and ``adapter_launch_s_per_layer`` more to launch.
    """

    model: Model
    gpu: Gpu
    tensor_parallel: int
    pipeline_parallel: int
    _curves: dict[int, Curve]

    def _pass_of(
        self, model: Model, queries: int = 1, *, adapted: bool = False, graphs: bool = True
    ) -> ForwardPass:
        layout = EngineLayout(
            self.tensor_parallel,
            self.pipeline_parallel,
            self.expert_parallel,
            self.data_parallel_attention,
            self.gpus_per_node,
            self.network_bytes_per_s,
            self.network_floor_s,
        )
        launch_s, prefill_s = 0.0, model.layers * self.prefill_launch_s_per_layer
        if not (graphs and self.with_graphs):
            launch_s, prefill_s = self._launch_s(model), 0.0
            launch_s += adapted * model.layers * self.adapter_launch_s_per_layer
        added_s = adapted * model.layers * self.adapter_s_per_layer
        return ForwardPass(model, self.gpu, layout, queries, launch_s, added_s, prefill_s)

    def _launch_s(self, model: Model) -> float:
        """Seconds in which the host launches every kernel of a pass. Layers of experts are taken to
        be spread evenly over recurrent and other ones."""
        recurrent, mixed = model.recurrent_layers, model.sparse_layers / model.layers
        least_s = self.mixture_launch_s_per_layer
        if model.latent:
            least_s = max(least_s, self.latent_launch_s_per_layer)
        return math.fsum(
            layers * ((1 - mixed) * each_s + mixed * max(each_s, least_s))
            for layers, each_s in (
                (model.layers - recurrent, self.launch_s_per_layer),
                (recurrent, self.recurrent_launch_s_per_layer),
            )
        )

    @cached_property
    def _pass(self) -> ForwardPass:
        return self._pass_of(self.model, adapted=self.serves_adapters)

    @cached_property
    def _launched_pass(self) -> ForwardPass:
        """Of more rollouts than any graph has."""
        return self._pass_of(self.model, adapted=self.serves_adapters, graphs=False)

    @cached_property
    def _most_in_graphs(self) -> float:
        """Rollouts of the largest graph."""
        if self.graph_rollouts is not None or self.engine is None:
            return self.graph_rollouts or math.inf
        preset = engine_presets()[self.engine]
        return preset.graph_rollouts(self.gpu.memory_bytes, self.tensor_parallel)

    def _by(self, rollouts: int, *hosts: Host) -> tuple[ForwardPass, Sequence[Host]]:
        """What computes an iteration of ``rollouts``: a host that launches every kernel prepares no
        other iteration meanwhile."""
        if rollouts <= self._most_in_graphs:
            return self._pass, hosts
        return self._launched_pass, [host._replace(overlaps=False) for host in hosts]

    @cached_property
    def _speculation(self) -> Speculation | None:
        speculative = self.speculative
        if speculative is None:
            return None
        draft = speculative.draft_of(self.model)
        verify = self._pass_of(self.model, speculative.tokens + 1, adapted=self.serves_adapters)
        return Speculation(speculative, verify, None if draft is None else self._pass_of(draft))

    def _speculates(self, rollouts: int) -> Speculation | None:
        """How, in an iteration of ``rollouts``; None where nothing is drafted."""
        speculation = self._speculation
        if speculation is None:
            return None
        most = speculation.options.off_above_rollouts
        return speculation if most is None or rollouts <= most else None

    @cached_property
    def _host(self) -> Host:
        overlaps = bool(self.host_overlaps and self.with_graphs)  # else it is busy launching
        return Host(self.host_s, self.host_per_rollout_s, overlaps)

    @cached_property
    def host_in_loop(self) -> Host:
        """The engine's with what the stack's loop adds."""
        host = self._host
        return host._replace(
            iteration_s=host.iteration_s + self.loop_s,
            rollout_s=host.rollout_s + self.loop_per_rollout_s,
        )

    def iteration_s(self, work: Iteration) -> float:
        """Seconds of any iteration; the decode curves are this in closed form."""
        factors = self.phase_factors
        decode, prefill = factors.of("decode"), factors.of("prefill")
        if decode == prefill == 1.0:
            return self._plain_s(work, self.host_in_loop)[0]
        in_loop_s, whole_s = self._plain_s(work, self.host_in_loop, self._host)
        decode_s = whole_s
        if work.prefill_rollouts:
            rollouts = work.rollouts - work.prefill_rollouts
            alone = Iteration(rollouts, work.context_tokens - work.prefill_context_tokens)
            decode_s = min(whole_s, *self._plain_s(alone, self._host)) if rollouts else 0.0
        return in_loop_s - whole_s + decode * decode_s + prefill * (whole_s - decode_s)

    def _plain_s(self, work: Iteration, *hosts: Host) -> list[float]:
        """Seconds of an iteration as the roofline has it, with each of these hosts."""
        how = None if self.speculative is None else self._speculates(work.rollouts)
        if how is None:
            forward, taken = self._by(work.rollouts, *hosts)
            gpu_s, launch_s = forward.seconds(work), forward.launch_s(work)
            return [host.seconds(gpu_s, work.rollouts, launch_s) for host in taken]
        return [how.seconds(work, host) for host in hosts]

    def _pieces(self, rollouts: int, host: Host) -> list[Piece]:
        how = self._speculates(rollouts)
        if how is None:
            forward, (taken,) = self._by(rollouts, host)
            return taken.pieces(forward.pieces(rollouts), rollouts)
        return how.pieces(rollouts, host)

    def decode_curve(self, rollouts: int) -> Curve:
        """Piecewise linear in the context (:meth:`ForwardPass.pieces`)."""
        curve = self._curves.get(rollouts)
        if curve is None:
            pieces = self._pieces(rollouts, self.host_in_loop)
            factor = self.phase_factors.of("decode")
            if factor != 1.0:
                pieces = plus(pieces, scaled(self._pieces(rollouts, self._host), factor - 1.0))
            curve = self._curves[rollouts] = Curve(pieces)
        return curve

    def mixed_iteration_s(self, work: Iteration) -> float:
        """Seconds of an iteration that prefills."""
        return self.iteration_s(work)
