"""A tornado as a picture."""

from __future__ import annotations

from collections.abc import Sequence

from rollcast.simulator.results.drawing import (
    INK,
    ROLLOUT,
    TRAIN,
    Target,
    hide_frame,
    new_figure,
    save,
    style,
)


def draw_bars(
    rows: Sequence[tuple[str, float, float, bool]], middle: float, target: Target
) -> None:
    """Draws rows of (name, seconds at the low end, at the high end, assumed), the first on top,
    about ``middle``; assumed ones are hatched. target: a path or a binary file. Raises ValueError
    for no rows."""
    if not rows:
        raise ValueError("there is no bar to draw")
    with style():
        height = 0.9 + 0.3 * len(rows)
        figure = new_figure(height)
        axes = figure.add_axes((0.46, 0.5 / height, 0.5, 0.3 * len(rows) / height))
        for place, (name, low, high, assumed) in enumerate(rows):
            hatch = "////" if assumed else None
            for end, colour in ((low, ROLLOUT), (high, TRAIN)):
                axes.barh(
                    place,
                    end - middle,
                    left=middle,
                    height=0.62,
                    color=colour,
                    hatch=hatch,
                    edgecolor="white",
                    linewidth=0.4,
                )
            axes.text(
                -0.02,
                place,
                name.replace("$", "\\$"),
                transform=axes.get_yaxis_transform(),
                ha="right",
                va="center",
            )
        axes.axvline(middle, color=INK, linewidth=0.8)
        axes.set_yticks([])
        axes.invert_yaxis()
        hide_frame(axes)
        axes.set_xlabel(
            "seconds a step: blue at an input's 5 %, orange at its 95 %; hatched, assumed"
        )
        save(figure, target)
