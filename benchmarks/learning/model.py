"""A small transformer over characters, and a decoder whose rows are at different places."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.learning.tasks import ALPHABET

CODES = {letter: code for code, letter in enumerate(ALPHABET)}


def encode(text: str) -> list[int]:
    """Codes of characters."""
    return [CODES[letter] for letter in text]


class Block(nn.Module):
    """Attention and a perceptron, each after a norm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def split(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, each (rows, heads, places, width of a head)."""
        rows, places, width = x.shape
        mixed = self.qkv(self.norms[0](x)).view(rows, places, 3, self.heads, width // self.heads)
        q, k, v = mixed.permute(2, 0, 3, 1, 4)
        return q, k, v

    def finish(self, x: Tensor, attended: Tensor) -> Tensor:
        """What follows the attention."""
        x = x + self.out(attended.transpose(1, 2).reshape(x.shape))
        added: Tensor = self.down(functional.relu(self.up(self.norms[1](x))))
        return x + added


class Model(nn.Module):
    """Logits of the next character. places: the longest context."""

    def __init__(self, places: int, width: int = 48, layers: int = 2, heads: int = 4) -> None:
        super().__init__()
        self.places, self.width = places, width
        self.letters = nn.Embedding(len(ALPHABET), width)
        self.order = nn.Embedding(places, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, len(ALPHABET))

    def forward(self, codes: Tensor, caches: list[tuple[Tensor, Tensor]] | None = None) -> Tensor:
        """codes: (rows, places). caches: receives keys and values of each layer."""
        x = self.letters(codes) + self.order.weight[: codes.shape[1]]
        for block in self.blocks:
            q, k, v = block.split(x)
            if caches is not None:
                caches.append((k, v))
            x = block.finish(x, functional.scaled_dot_product_attention(q, k, v, is_causal=True))
        logits: Tensor = self.head(self.norm(x))
        return logits


class Decoder:
    """Keys and values of rows, each at its own place; the weights may change between two calls."""

    def __init__(self, model: Model, rows: int) -> None:
        heads = model.blocks[0].heads
        shape = (rows, heads, model.places, model.width // heads)
        self.model = model
        self.caches = [(torch.zeros(shape), torch.zeros(shape)) for _ in model.blocks]

    @torch.inference_mode()
    def prefill(self, rows: Tensor, texts: list[list[int]]) -> None:
        """Computes the keys and values of whole contexts."""
        width = max(map(len, texts))
        codes = torch.tensor([text + [0] * (width - len(text)) for text in texts])
        caches: list[tuple[Tensor, Tensor]] = []
        self.model(codes, caches)
        for (keys, values), (k, v) in zip(self.caches, caches, strict=True):
            keys[rows, :, :width] = k
            values[rows, :, :width] = v

    @torch.inference_mode()
    def step(self, rows: Tensor, codes: Tensor, places: Tensor) -> Tensor:
        """Log-probabilities, (rows, letters), after one more character of each row."""
        model = self.model
        x = (model.letters(codes) + model.order(places))[:, None]
        most = int(places.max()) + 1
        seen = (torch.arange(most) <= places[:, None])[:, None, None]
        for block, (keys, values) in zip(model.blocks, self.caches, strict=True):
            q, k, v = block.split(x)
            keys[rows, :, places] = k[:, :, 0]
            values[rows, :, places] = v[:, :, 0]
            attended = functional.scaled_dot_product_attention(
                q, keys[rows, :, :most], values[rows, :, :most], attn_mask=seen
            )
            x = block.finish(x, attended)
        logits: Tensor = model.head(model.norm(x[:, 0]))
        return logits.log_softmax(-1)
