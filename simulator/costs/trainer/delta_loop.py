"""Gated delta nets in PyTorch, a chunk of 64 tokens after another, where flash-linear-attention is
not installed.

Kernels and bytes are those of transformers 5.3's ``torch_chunk_gated_delta_rule`` and of its
backward, counted operation by operation on tensors without data: 16 heads of 128, rows of 1,024 to
7,168 tokens. Each slice of a chunk gets a gradient as long as the row, to which the next is added,
so that a backward grows with the square of the row. transformers since pull request 47625 (July
2026) moves 0.6 times as much forward, and of the backward two thirds less beside those gradients:
by its counts Qwen3.5-9B takes 0.7 s more for eight rows of 1,024 tokens on B200, where its issue
48718 has 0.5.
"""

from typing import NamedTuple

_WIDTH, _CHUNK = 128, 64
_FORWARD_BYTES = 73.5e3  # of a token and head
_BACKWARD_BYTES, _BYTES_PER_TOKEN_OF_ROW = 306e3, 162.0  # of a token and head
_KERNELS, _KERNELS_PER_CHUNK = 429, 18  # of a layer


class DeltaLoop(NamedTuple):
    """What loops of all layers take: a head of ``width`` for each of ``heads``, on GPUs that have
    ``share`` of a row together, at so many seconds a byte and operation."""

    layers: float
    heads: float
    width: int
    share: float
    s_per_byte: float
    launch_s: float

    def forward_s(self, tokens: int, pairs: float) -> float:
        """A forward over a microbatch; pairs: of its queries and keys."""
        if not tokens:
            return 0.0
        chunks = 2 * pairs / tokens / _CHUNK  # of a mean row, as rows run beside each other
        launched_s = self.layers * (_KERNELS + _KERNELS_PER_CHUNK * chunks) * self.launch_s
        return max(tokens * self._moved_s(_FORWARD_BYTES), launched_s)

    def backward_s(self, tokens: int, pairs: float) -> float:
        """What its backward takes beside two forwards."""
        moved_s = tokens * self._moved_s(_BACKWARD_BYTES)
        moved_s += 2 * pairs * self._moved_s(_BYTES_PER_TOKEN_OF_ROW)
        return max(0.0, moved_s - 2 * self.forward_s(tokens, pairs))

    def _moved_s(self, bytes_each: float) -> float:
        scale = self.layers * self.heads * self.width / _WIDTH / self.share
        return scale * bytes_each * self.s_per_byte
