"""What EasyR1's launch settings imply."""

from __future__ import annotations

from collections.abc import Iterable

from rollcast.simulator.stacks.settings import Setting, Settings, value, whole


def implied(settings: Settings) -> Iterable[Setting]:
    """Tokens of a pass of dynamic batches (``max_token_len`` of workers/actor/dp_actor.py), and how
    rows are padded."""
    packing = settings.get("run.packing")
    if packing is not None and packing.value is False:
        yield packing.implies("run.padding", "padded_to_cap")
    row = (whole(settings, "run.max_prompt_tokens") or 0) + (
        whole(settings, "workload.max_new_tokens") or 0
    )
    for rows, tokens, whose in (
        ("run.micro_batch_rollouts", "run.max_pass_tokens", "run."),
        ("run.log_prob_micro_rollouts", "run.log_prob_pass_tokens", "run."),
        ("run.critic_micro_rollouts", "run.critic_max_pass_tokens", "run.critic_"),
    ):
        each = whole(settings, rows)
        if each and row and value(settings, f"{whose}dynamic_batches") is True:
            yield settings[rows].implies(tokens, each * row)
