"""The page of a launch: fits or not, the time of a step, the ledger of memory, and changes."""

from __future__ import annotations

from collections.abc import Sequence

from rollcast.simulator.check.answer import Answer, Priced
from rollcast.simulator.check.layout import GROUPS, POOL_NAMES, Line, groups_of, memory_lines
from rollcast.simulator.check.words import effect, sentences, spread, to_fit
from rollcast.simulator.costs.memory.ledger import Ledger
from rollcast.simulator.report import parts
from rollcast.simulator.report.assumptions import assumptions
from rollcast.simulator.report.ledger import Part, bars
from rollcast.simulator.report.page import Content, Markup, joined, page, tag
from rollcast.simulator.report.parts import phase_table, reproduced
from rollcast.simulator.results.text import (
    MEMORY_PHASE_NAMES,
    MEMORY_PHASES,
    gigabytes,
    hours,
    interval,
    seconds,
    share,
    usd,
)

_SHADES = dict(
    zip(GROUPS, ("rollout", "train", "sync", "tail", "lost", "most", "some"), strict=True)
)
_FREE = "idle"


def check_page(answer: Answer) -> str:
    """The whole page."""
    first, *others = sentences(answer)
    question = answer.question
    return page(
        question.name,
        parts.headline(first, *others),
        _tiles(answer),
        parts.notes(tuple(answer.forecast.summary["warnings"])),
        _changes(to_fit(answer), answer.fixes, answer),
        _changes("What would make it faster", answer.faster, answer),
        parts.section(
            "GPU memory",
            memory_bars(answer.ledger),
            memory_table(answer.ledger),
            about="Of one GPU of each kind, by phase of a step, beside what the GPU has.",
        ),
        parts.section(
            "A step by phase",
            phase_table([(question.name, answer.forecast.said, True)], "of"),
            about="Seconds of a mean step, and their 90 % intervals.",
        ),
        _open(answer),
        assumptions(question.scenario),
        reproduced(question.scenario.raw.data, "rollcast simulate scenario.yaml"),
        subtitle=f"{question.read_as}, read by rollcast check; nothing was run",
    )


def _tiles(answer: Answer) -> Markup:
    peak, found = answer.ledger.peak, answer.forecast
    figures = [
        (
            "peak of a GPU",
            gigabytes(peak.bytes),
            f"of {gigabytes(peak.capacity_bytes)}, {MEMORY_PHASES[peak.phase]}",
        ),
        ("fits", share(answer.ledger.fits_probability), "how likely"),
        (
            "a step",
            seconds(found.step.median, like=found.step.high),
            f"90 %: {interval((found.step.low, found.step.high))}",
        ),
    ]
    if found.hours is not None:
        whole = spread(found.hours, hours).partition(" (")
        figures.append((f"{found.steps:,} steps", whole[0], f"90 %: {whole[2].rstrip(')')}"))
    if found.usd is not None:
        price = spread(found.usd, usd).partition(" (")
        figures.append(("cost", price[0], f"90 %: {price[2].rstrip(')')}"))
    figures.append(("bound by", str(found.summary["bound_by"] or "-"), f"{found.gpus} GPUs"))
    return parts.tiles(figures)


def memory_bars(ledger: Ledger) -> Markup:
    """A bar of a GPU's memory for each phase and pool, and the key."""
    lines = memory_lines(ledger)
    scale = max([1.0, *(line.share for line in lines)])
    rows = [(_name(line, lines), _bar(line, scale)) for line in lines]
    used = groups_of(lines)
    return joined(
        [bars(rows), parts.key([*((_SHADES[group], group) for group in used), (_FREE, "free")])]
    )


def _name(line: Line, lines: Sequence[Line]) -> str:
    name = MEMORY_PHASE_NAMES[line.phase]
    several = len({one.pool for one in lines}) > 1
    over = ": does not fit" if line.share > 1 else ""
    return f"{name}{f' ({POOL_NAMES.get(line.pool, line.pool)})' if several else ''}{over}"


def _bar(line: Line, scale: float) -> list[Part]:
    whole = line.total / line.share * scale
    cells = [
        Part(_SHADES[group], size / whole, f"{group}: {gigabytes(size)}")
        for group in GROUPS
        if (size := line.parts.get(group, 0.0)) > 0
    ]
    free = max(0.0, 1 - line.total / whole)
    return [*cells, Part(_FREE, free, f"free: {gigabytes(free * whole)}")]


def memory_table(ledger: Ledger) -> Markup:
    """The same figures in GB."""
    lines = memory_lines(ledger)
    columns = [
        parts.Column("phase", text=True),
        parts.Column("on", text=True),
        *(parts.Column(group) for group in GROUPS),
        parts.Column("in all"),
        parts.Column("of the GPU"),
    ]
    rows = [
        parts.Row(
            (
                MEMORY_PHASE_NAMES[line.phase],
                POOL_NAMES.get(line.pool, line.pool),
                *(f"{line.parts[g] / 1e9:.1f}" if line.parts.get(g) else "" for g in GROUPS),
                f"{line.total / 1e9:.1f}",
                f"{line.share:.0%}",
            ),
            chosen=line.share > 1,
        )
        for line in lines
    ]
    return parts.folded("in GB", parts.table(columns, rows, "GPU memory in GB by phase"))


def _changes(title: str, changes: Sequence[Priced], answer: Answer) -> Content:
    if not changes:
        return None
    cells = []
    for one in changes:
        cells.append(parts.code("\n".join(one.change.lines), "the lines"))
        words = "; ".join(one.change.words)
        does = effect(one, answer.forecast.step, host=answer.ledger.host_matters)
        cells.append(tag("p", f"{does}: {words}"))
    return parts.section(title, joined(cells), about="In the stack's own words, ready to paste.")


def _open(answer: Answer) -> Content:
    """What nobody said, what could not be resolved, and keys without a meaning here."""
    launch = answer.question.launch
    items = [
        f"assumed: {part.key} {part.value} ({part.source})"
        for part in answer.question.draft.assumed
        if part.key != "seed"
    ]
    items += [
        f"not resolved: {i.key} ({i.text} in {i.place}: {i.why})"
        for i in answer.question.unresolved
    ]
    names = sorted({item.key for item in launch.unknown})
    if names:
        items.append(f"keys without a meaning here: {', '.join(names)}")
    return parts.section("What is open", parts.listed(items)) if items else None
