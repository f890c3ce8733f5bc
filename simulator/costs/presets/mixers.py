"""What mixes tokens in place of plain attention: state spaces, and attention to chosen tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from rollcast.simulator.values import Between, Doc, Options

CHUNK = 128  # tokens that state-space layers take at once in training (Mamba-2, arXiv 2405.21060)
INDEX_BYTES = 132 / 128  # of an index key's element: fp8, and four bytes of scale for 128

Some = Annotated[int, Between(1, 10**7)]
Any_ = Annotated[int, Between(0, 10**7)]


@dataclass(frozen=True, slots=True)
class Reach:
    """What the attention of some layers reads and computes of the tokens before one.

    kv_bytes: of a token in the cache of one layer. flop: of a query-key pair in one layer;
    decode_flop: the same in decoding. heads: by which GPUs split it; 0: each holds all.
    seen_tokens: a query attends to no more of them; 0: to all. held: whether the cache keeps no
    more of them either (a window does, a choice does not).
    """

    layers: float
    kv_bytes: float
    flop: float
    decode_flop: float
    heads: int
    seen_tokens: int = 0
    held: bool = False

    def shards(self, gpus: int) -> int:
        """Parts into which ``gpus`` GPUs split its cache."""
        return min(gpus, self.heads) if self.heads else 1

    def kept_share(self, tokens: int) -> float:
        """Share of ``tokens`` that stay in the cache."""
        return min(1.0, self.seen_tokens / tokens) if self.held else 1.0


@dataclass(frozen=True, slots=True)
class StateSpace(Options):
    """Mamba-2 layers (arXiv 2405.21060): each head keeps head_dim x state_dim numbers."""

    FIELD = "model.state_space"

    layers: Annotated[Some, Doc("number of state-space layers", unit="layers")]
    heads: Annotated[Some, Doc("number of heads of a layer", unit="heads")]
    head_dim: Annotated[Some, Doc("width of a head", unit="elements")]
    state_dim: Annotated[Some, Doc("state of each element of a head", unit="elements")]
    groups: Annotated[Some, Doc("groups of heads that share inputs and outputs of the state")] = 1
    conv_kernel: Annotated[Some, Doc("width of the causal convolution", unit="tokens")] = 4
    state_bytes_per_element: Annotated[
        float,
        Between(0.5, 8),
        Doc("bytes of an element of the state", unit="bytes", source="float32, as Nemotron-H"),
    ] = 4.0

    @property
    def _convolved(self) -> int:
        return self.heads * self.head_dim + 2 * self.groups * self.state_dim

    def parameters(self, hidden: int) -> int:
        """Weights of one layer: projections to gate, convolved inputs and step, and back."""
        width = self.heads * self.head_dim
        inside = hidden * (width + self._convolved + self.heads)
        return inside + width * hidden + self._convolved * self.conv_kernel

    @property
    def state_bytes(self) -> float:
        """Bytes that all layers keep of one rollout: states, and in 16 bit the tokens convolved."""
        state_bytes = self.heads * self.head_dim * self.state_dim * self.state_bytes_per_element
        return self.layers * (state_bytes + 2 * (self.conv_kernel - 1) * self._convolved)

    @property
    def flop_per_token(self) -> int:
        """Flop of all layers for one token in training, projections aside: the state's update and
        reading, and the products within a chunk."""
        width, state = self.head_dim, self.state_dim
        return self.layers * self.heads * (4 * width * state + 2 * CHUNK * (width + state))

    @property
    def elements_per_token(self) -> int:
        """Elements of one token that a layer makes."""
        return 3 * self.heads * self.head_dim + 2 * self._convolved


@dataclass(frozen=True, slots=True)
class SparseAttention(Options):
    """Attention to the tokens that an indexer chooses (DSA, DeepSeek-V3.2-Exp).

    The indexer scores all tokens before one, by an fp8 key of its own for each.
    """

    FIELD = "model.sparse"

    top_tokens: Annotated[Some, Doc("tokens that a query attends to at most", unit="tokens")]
    index_heads: Annotated[Some, Doc("number of the indexer's query heads", unit="heads")]
    index_head_dim: Annotated[Some, Doc("width of the indexer's key", unit="elements")]

    def parameters(self, hidden: int, queries: int) -> int:
        """Weights of the indexer of one layer, whose queries come from ``queries`` elements."""
        projected = queries * self.index_heads * self.index_head_dim
        return projected + hidden * (self.index_head_dim + self.index_heads)

    def index(self, layers: float, ratio: int = 1) -> Reach:
        """What the indexer reads, one key for each ``ratio`` tokens."""
        flop = 2 * self.index_heads * self.index_head_dim / ratio
        kv_bytes = INDEX_BYTES * self.index_head_dim / ratio
        return Reach(layers, kv_bytes, flop, flop, heads=0)


@dataclass(frozen=True, slots=True)
class CompressedAttention(Options):
    """Attention to compressed tokens and a window (DeepSeek-V4), with one vector as key and value.

    Lightly compressed layers attend to the entries that ``model.sparse`` chooses, whose
    ``top_tokens`` then counts entries; heavily compressed ones to all of theirs. Layers that are
    neither see the window alone. Hyper-connections are left out.
    """

    FIELD = "model.compressed"

    light_layers: Annotated[Any_, Doc("layers that compress lightly", unit="layers")]
    heavy_layers: Annotated[Any_, Doc("layers that compress heavily", unit="layers")]
    output_groups: Annotated[Some, Doc("groups of heads of the output projection")]
    output_rank: Annotated[Some, Doc("latent width of a group's output", unit="elements")]
    light_ratio: Annotated[Some, Doc("tokens of an entry, lightly compressed", unit="tokens")] = 4
    heavy_ratio: Annotated[Some, Doc("tokens of an entry, heavily compressed", unit="tokens")] = 128

    def parameters(self, hidden: int, head_dim: int) -> int:
        """Weights of the compressors of all layers: a value and a gate for each entry; light ones
        overlap, and take twice as many."""
        return (4 * self.light_layers + 2 * self.heavy_layers) * hidden * head_dim

    def output_parameters(self, hidden: int, width: int) -> int:
        """Weights of one layer's output projection of heads that are ``width`` wide together."""
        return width * self.output_rank + self.output_groups * self.output_rank * hidden
