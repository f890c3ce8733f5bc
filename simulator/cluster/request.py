"""A rollout on a replica, from its submission to the end of its segment."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollcast.simulator.cluster.kv import Chain, Leading
from rollcast.simulator.core.rollout import Ending, Rollout, Segment, VersionTokens

if TYPE_CHECKING:
    from rollcast.simulator.cluster.sessions import Session


class Request(Chain):
    """What a replica keeps of a rollout.

    known: prompt and sampled tokens to compute before the next one is sampled. While it waits or
    prefills, ``computed`` counts tokens in the cache; while it decodes, ``offset`` stands for them
    (`simulator.cluster.jump.DecodingBatch`).
    target: known tokens at which its segment ends; whole: at which its response is, or its turn;
    ending: what it is called then. version: of the weights, since it had ``since`` known tokens;
    older: (version, since) of those before, rising. leading: what others may have of its blocks.
    session: of a rollout with turns.
    """

    __slots__ = (
        "aborted",
        "computed",
        "decoding",
        "ending",
        "known",
        "offset",
        "older",
        "preemptions",
        "prefill_tokens",
        "prompt_tokens",
        "recomputed_tokens",
        "reward",
        "rollout",
        "session",
        "since",
        "start",
        "target",
        "ticket",
        "version",
        "whole",
    )

    def __init__(
        self,
        rollout: Rollout,
        prompt_tokens: int,
        known: int,
        whole: int,
        allowance: int | None,
        ending: Ending,
        reward: float | None,
        version: int,
        leading: Leading,
        session: Session | None = None,
    ) -> None:
        self.prompt = rollout.prompt
        self.name = (rollout.group, rollout.index, rollout.attempt)
        self.body, self.public = leading
        self.copies = ()
        self.rollout = rollout
        self.session = session
        self.prompt_tokens = prompt_tokens
        self.ending = ending
        self.reward = reward
        self.known = known
        self.whole = self.target = whole
        if allowance is not None:
            self.target = min(whole, known + allowance)
        self.version, self.since = version, self.known
        self.older: tuple[tuple[int, int], ...] = ()
        self.computed = 0
        self.decoding = False
        self.offset = 0
        self.ticket = -1  # of its place in the heap of ends
        self.start = -1
        self.prefill_tokens = 0
        self.recomputed_tokens = 0
        self.preemptions = 0
        self.aborted = False

    def tokens_by_version(self, known: int) -> tuple[VersionTokens, ...]:
        """Its tokens by version, once it has ``known``."""
        if not self.older:
            new = known - self.since
            return (VersionTokens(self.version, new),) if new > 0 else ()
        versions = (*self.older, (self.version, self.since))
        ends = [start for _, start in versions[1:]] + [known]
        pairs = zip(versions, ends, strict=True)
        return tuple(VersionTokens(v, end - start) for (v, start), end in pairs if end > start)

    def new_version(self, version: int, known: int) -> None:
        """Tokens after the first ``known`` are of ``version``."""
        if self.since != known and self.version != version:
            self.older += ((self.version, self.since),)
            self.since = known
        self.version = version

    def segment(self, replica: int, known: int, start_s: float, end_s: float) -> Segment:
        """Its segment, which ends with ``known`` tokens."""
        whole = known == self.whole
        ending = self.ending
        if not whole:
            ending = "budget" if known == self.target else "aborted"
        rollout = self.rollout
        segment = Segment(
            rollout.group,
            rollout.index,
            rollout.attempt,
            replica,
            self.prompt_tokens,
            self.tokens_by_version(known),
            ending,
            start_s,
            end_s,
            self.prefill_tokens,
            self.recomputed_tokens,
            self.preemptions,
            self.reward if whole else None,
        )
        return segment if self.session is None else self.session.with_calls(segment)
