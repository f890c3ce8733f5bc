"""What vLLM's scheduler really does, iteration by iteration, and its rules written down plainly.

``run_requests`` runs requests of forced lengths on a real replica; ``reference_iterations`` plays
the same requests by the rules of vLLM's scheduler, one token at a time, without prefix caching.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rollcast.engine.vllm.replica import VllmReplica

Request = tuple[int, int]
"""(prompt tokens, response tokens)"""

Row = tuple[int, int, int]
"""(prefill tokens, rollouts that compute, context tokens once the iteration ends)"""


def run_requests(
    replica: VllmReplica, requests: Sequence[Request]
) -> tuple[list[Row], int, list[int]]:
    """The real rows, preemptions in all, and the requests' numbers in the order they finished."""
    for i, (prompt_tokens, new_tokens) in enumerate(requests):
        prompt = [2 + i] + [3 + k % 50 for k in range(prompt_tokens - 1)]
        replica.submit(str(i), prompt, max_new_tokens=new_tokens, seed=i, ignore_eos=True)
    rows, preemptions, order = [], 0, []
    while replica.unfinished:
        finished = replica.step()
        done = replica.last_iteration
        work = done.work
        rows.append((work.prefill_tokens, work.rollouts, work.context_tokens))
        preemptions += done.preemptions
        order += [int(response.request_id) for response in finished]
    return rows, preemptions, order


class _Rollout:
    def __init__(self, number: int, prompt_tokens: int, new_tokens: int) -> None:
        self.number = number
        self.tokens = prompt_tokens  # prompt and response so far
        self.last = prompt_tokens + new_tokens
        self.computed = 0
        self.blocks = 0
        self.prefilling = True


def reference_iterations(
    requests: Sequence[Request],
    *,
    max_seqs: int,
    max_batched_tokens: int,
    kv_blocks: int,
    block_tokens: int,
) -> tuple[list[Row], int, list[int]]:
    """The same by vLLM's rules: see the comments for each of them."""
    waiting = [_Rollout(i, *request) for i, request in enumerate(requests)]
    running: list[_Rollout] = []
    rows: list[Row] = []
    preemptions, order, free = 0, [], kv_blocks

    def more_blocks(rollout: _Rollout, upto_tokens: int) -> int:
        return max(0, -(-upto_tokens // block_tokens) - rollout.blocks)

    while waiting or running:
        budget, scheduled = max_batched_tokens, dict[_Rollout, int]()
        preempted = False
        # Running rollouts go first, in the order of admission, whether they decode or prefill.
        at = 0
        while at < len(running) and budget > 0:
            rollout = running[at]
            tokens = min(rollout.tokens - rollout.computed, budget)
            # Without free blocks the rollout admitted last gives up all of its own, and waits at
            # the head of the queue; it may be the very one that asks.
            while more_blocks(rollout, rollout.computed + tokens) > free and rollout in running:
                victim = running.pop()
                free += victim.blocks
                victim.computed, victim.blocks, victim.prefilling = 0, 0, True
                waiting.insert(0, victim)
                preemptions, preempted = preemptions + 1, True
            if rollout not in running:
                break
            need = more_blocks(rollout, rollout.computed + tokens)
            rollout.blocks, free = rollout.blocks + need, free - need
            scheduled[rollout] = tokens
            budget -= tokens
            at += 1
        # Nothing is admitted in an iteration that preempted. A waiting rollout is admitted when
        # all of its tokens, not only the first chunk, would fit into the free blocks.
        while waiting and not preempted and budget > 0 and len(running) < max_seqs:
            rollout = waiting[0]
            if more_blocks(rollout, rollout.tokens) > free:
                break
            running.append(waiting.pop(0))
            tokens = min(rollout.tokens, budget)
            rollout.blocks = more_blocks(rollout, tokens)
            free -= rollout.blocks
            scheduled[rollout] = tokens
            budget -= tokens
        prefill = context = 0
        for rollout, tokens in scheduled.items():
            rollout.computed += tokens
            context += rollout.computed
            prefill += tokens if rollout.prefilling else 0
            if rollout.computed == rollout.tokens:
                rollout.prefilling = False
                rollout.tokens += 1  # the token sampled; its own KV comes with the next iteration
                if rollout.tokens == rollout.last:
                    running.remove(rollout)
                    free += rollout.blocks
                    order.append(rollout.number)
        rows.append((prefill, len(scheduled), context))
    return rows, preemptions, order
