"""What iterations of an engine that speculates take, in seconds."""

from __future__ import annotations

from dataclasses import dataclass

from rollcast.simulator.costs.base import Iteration, Piece, plus, scaled
from rollcast.simulator.costs.engine.forward_pass import ForwardPass, Host
from rollcast.simulator.costs.engine.speculative_options import Speculative


@dataclass(frozen=True)
class Speculation:
    """Iterations of an engine that speculates.

    A real iteration verifies ``options.tokens`` + 1 tokens of each rollout, which gains some of
    them. A simulated one brings each decoding rollout one token further, so it takes the real one's
    seconds over the mean gain. The host's time per rollout counts for each token gained. What
    prompts add to an iteration is added whole. Tokens drafted and dropped take neither room in the
    KV pool nor ``engine.max_batched_tokens``.

    verify: passes of the model with that many queries a rollout. draft: passes of what drafts, one
    for each drafted token; None where nothing is computed.
    """

    options: Speculative
    verify: ForwardPass
    draft: ForwardPass | None

    @property
    def _extra_s(self) -> float:
        return self.options.verify_host_s + self.options.tokens * self.options.draft_host_s

    def pieces(self, rollouts: int, host: Host) -> list[Piece]:
        """Seconds in which ``rollouts`` gain one token each, over their context."""
        pieces = self.verify.pieces(rollouts)
        if self.draft is not None:
            pieces = plus(pieces, scaled(self.draft.pieces(rollouts), self.options.tokens))
        shared = scaled(pieces, 1 / self.options.expected_tokens, self._extra_s + host.iteration_s)
        return scaled(shared, 1.0, host.rollout_s * rollouts)

    def seconds(self, work: Iteration, host: Host) -> float:
        """The same of any iteration."""
        decoding = work.rollouts - work.prefill_rollouts
        rollouts_s = host.rollout_s * work.rollouts
        if not decoding:
            return self._pass_s(work) + host.iteration_s + rollouts_s
        alone = Iteration(decoding, work.context_tokens - work.prefill_context_tokens)
        alone_s = self._pass_s(alone)
        whole_s = alone_s + self._extra_s + host.iteration_s
        if self.draft is not None:
            whole_s += (self.options.tokens - 1) * self.draft.seconds(alone)
        seconds = whole_s / self.options.expected_tokens + rollouts_s
        if work.prefill_tokens:
            seconds += self._pass_s(work) - alone_s
        return seconds

    def _pass_s(self, work: Iteration) -> float:
        """One pass of the model and the first of the draft, which sees the prompts too."""
        seconds = self.verify.seconds(work)
        return seconds if self.draft is None else seconds + self.draft.seconds(work)
