"""Single values as consoles and configurations spell them: plain, or as numpy's and
torch's own spelling of a scalar."""

from __future__ import annotations

import math
import re

PLAIN = r"[-+]?(?:\d[\d_]*\.?\d*(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?|nan|inf|Infinity|NaN)"
SPELT = rf"(?:(?:np|numpy|torch|jnp)\.)?[A-Za-z_]\w*\(\s*{PLAIN}(?:\s*,[^()]*)?\)"
VALUE = rf"(?:{SPELT}|{PLAIN})"
"""``np.float64(2.0)``, ``np.int32(2)``, ``tensor(0.5, device='cuda:0')`` and plain numbers."""

_WHOLE = re.compile(rf"\s*(?:[\w.]+\(\s*({PLAIN})(?:\s*,[^()]*)?\)?|({PLAIN})\)?)\s*")
_LONGEST = 200


def number(text: str) -> float | None:
    """The number that all of ``text`` spells, nan and infinities included; else None."""
    if len(text) > _LONGEST:
        return None
    match = _WHOLE.fullmatch(text)
    if match is None:
        return None
    try:
        return float(match[1] or match[2])
    except ValueError:
        return None


def scalar(value: object) -> float | None:
    """A parsed number, infinite where it has too many digits, or the only entry of a list; None for
    anything else, flags included."""
    for _ in range(4):
        if isinstance(value, list) and len(value) == 1:
            value = value[0]
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf
