"""Shared parts of matplotlib pictures, in Okabe and Ito's colour-blind palette."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from os import PathLike, fspath
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from rollcast.simulator.results.intervals import FloatArray
from rollcast.simulator.results.scale import marks, time_unit

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Target = str | PathLike[str] | IO[bytes]

_DPI = 160
WIDTH_IN = 10.0
ROLLOUT, TRAIN, SYNC, IDLE = "#0072B2", "#E69F00", "#009E73", "#9A9A9A"
FEW, MANY = "#CFE3F2", "#00466F"  # running rollouts, from one to the most
TAIL = "#9CCBEA"
AWAY = "#CC79A7"  # rollouts in their environments
DOWN = "#3A3A3A"  # a replica that died
INK, FAINT = "#222222", "#6B6B6B"
HATCH = "//////"
_STYLE: dict[Any, Any] = {
    "font.size": 9.0,
    "axes.edgecolor": IDLE,
    "axes.linewidth": 0.6,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "text.color": INK,
    "axes.labelcolor": FAINT,
    "hatch.color": "#B4B4B4",
    "hatch.linewidth": 0.6,
    "svg.hashsalt": "rollcast",
}
_METADATA: dict[str, dict[str, Any]] = {
    "png": {"Software": None},
    "svg": {"Date": None, "Creator": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}


@contextmanager
def style() -> Iterator[None]:
    """Sets rollcast's style for the enclosed code, whatever the user's matplotlibrc."""
    import matplotlib

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_STYLE)
        yield


def new_figure(height_in: float) -> Figure:
    """An empty figure of the common width."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH_IN, height_in))
    FigureCanvasAgg(figure)
    return figure


def hide_frame(axes: Axes) -> None:
    """Leaves only the lower edge of the axes."""
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)


def save(figure: Figure, target: Target) -> None:
    """Writes a picture without date and versions."""
    kind = "png"
    if isinstance(target, str | PathLike):
        kind = fspath(target).rpartition(".")[2].lower()
    figure.savefig(target, format=kind, dpi=_DPI, metadata=_METADATA.get(kind))


def mixed(*parts: tuple[FloatArray, FloatArray]) -> FloatArray:
    """RGBA of bins from (share of the bin, colour) parts, shape (bins, 4)."""
    bins = len(parts[0][0])
    cover = sum((share for share, _ in parts), np.zeros(bins))
    colour = sum((share[:, None] * rgb for share, rgb in parts), np.zeros((bins, 3)))
    pixels = np.zeros((bins, 4))
    some = cover > 0
    pixels[some, :3] = colour[some] / cover[some, None]
    pixels[:, 3] = np.clip(cover, 0.0, 1.0)
    return pixels


def rgb(colour: str) -> FloatArray:
    """RGB in 0 to 1 of ``#rrggbb``."""
    return np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])


def shade(level: FloatArray) -> FloatArray:
    """Colours of loads from 0 to 1, shape (n, 3)."""
    stops = np.array([rgb(FEW), rgb(ROLLOUT), rgb(MANY)])
    at = np.clip(level, 0.0, 1.0)
    return np.column_stack([np.interp(at, (0.0, 0.6, 1.0), stops[:, c]) for c in range(3)])


def time_axis(axes: Axes, span_s: float) -> None:
    """Ticks and a label in seconds, minutes or hours."""
    from matplotlib.ticker import FixedLocator, FuncFormatter

    unit_s, name = time_unit(span_s)
    axes.xaxis.set_major_locator(
        FixedLocator([tick * unit_s for tick in marks(0.0, span_s / unit_s, 9)])
    )
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x / unit_s:g}"))
    axes.set_xlabel(name, labelpad=2)


def key_below(figure: Figure, keys: Sequence[Artist], at: float, **spacing: float) -> None:
    """A key in one row at the lower left. at: its height, as a share of the figure's."""
    figure.legend(
        handles=keys,
        loc="lower left",
        bbox_to_anchor=(0.012, at),
        ncols=len(keys),
        frameon=False,
        borderaxespad=0.0,
        borderpad=0.0,
        **spacing,
    )


def legend(
    figure: Figure, height_in: float, peak: int | None = None, away: int = 0, down: bool = False
) -> None:
    """The key below the time axis. peak: most rollouts on a replica. away: most in environments.
    down: whether a replica was."""
    from matplotlib.patches import Patch

    if peak is None:
        keys = [
            Patch(color=ROLLOUT, label="rollouts"),
            Patch(color=TAIL, label="tail: replica under a quarter of its peak"),
        ]
    else:
        keys = [
            Patch(color=FEW, label="1 rollout running"),
            Patch(color=MANY, label=f"{peak} running"),
        ]
    keys += [Patch(color=TRAIN, label="training"), Patch(color=SYNC, label="weight sync")]
    if away:
        keys.append(Patch(color=AWAY, label=f"{away} in their environments"))
    if down:
        keys.append(Patch(color=DOWN, label="replica down"))
    keys.append(Patch(facecolor="white", edgecolor="#B4B4B4", hatch=HATCH, label="idle GPUs"))
    key_below(figure, keys, 0.1 / height_in, handlelength=1.6, columnspacing=1.6)
