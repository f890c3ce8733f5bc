"""Shapes that ceilings are measured at, with names that forecasts and measurements share."""

from collections.abc import Iterator

TOKENS = (512, 4096, 16384)
ROUTED = (1024, 4096, 16384)
"""Tokens of a mixture's layer in a trainer."""
LAYERS = {"1.5b": (1536, 8960), "7b": (3584, 18944)}  # hidden and MLP width
BATCHES = (1, 64, 256)
"""Tokens of a layer's forward as in decoding."""


def products() -> Iterator[tuple[str, tuple[int, int, int], str]]:
    """(name, (rows, inner, columns), type) of matrix products."""
    yield "8192^3", (8192, 8192, 8192), "bfloat16"
    yield "4096^3 fp32", (4096, 4096, 4096), "float32"
    for tokens in TOKENS:
        for model, (hidden, wide) in LAYERS.items():
            yield f"{tokens} {model} up", (tokens, hidden, wide), "bfloat16"
            yield f"{tokens} {model} down", (tokens, wide, hidden), "bfloat16"
            yield f"{tokens} {model} out", (tokens, hidden, hidden), "bfloat16"
    yield "1024 1.5b head", (1024, 1536, 151936), "bfloat16"
    yield "4096 1.5b head", (4096, 1536, 151936), "bfloat16"
    yield "64 7b up", (64, 3584, 18944), "bfloat16"
    yield "1 7b up", (1, 3584, 18944), "bfloat16"


ATTENTION = {
    "8 x 1024, 12 heads of 128": (8, 12, 1024, 128),
    "2 x 4096, 12 heads of 128": (2, 12, 4096, 128),
    "1 x 16384, 12 heads of 128": (1, 12, 16384, 128),
    "4 x 4096, 32 heads of 64": (4, 32, 4096, 64),
}
"""Sequences, heads, tokens and head width of causal attention."""
