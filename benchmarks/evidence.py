"""Tables of the documents, made from results: ``python -m benchmarks.evidence [--only PAPER ...]``.

Computes what papers published and what the simulator forecasts of it (`benchmarks.claims`), keeps
that as data in ``results/published.json``, and writes every table that documents show of it, and of
the other results, between its markers (``<!-- table: NAME -->`` and ``<!-- end of table -->``).
``--tables`` computes nothing and writes the tables of the results that are there. Nothing is tuned
to a published result: ``claims/papers.yaml`` says what was taken from the paper and what from fits
to other data, each row what had to be assumed, and a miss its likely reason.
"""

import json
import re
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import Any

import yaml

from benchmarks import run_tables, side_by_side
from benchmarks.claims.common import Row, Section
from benchmarks.gpu import engine, from_presets, judge
from benchmarks.held_out import CAMPAIGNS
from benchmarks.learning import pages as learning
from benchmarks.memory import memory_sentence, memory_table
from benchmarks.runner import (
    RESULTS,
    ROOT,
    markdown_table,
    parser,
    progress,
    write_json,
    write_text,
)

DOCUMENTS = (
    ROOT / "README.md",
    *(
        ROOT / "docs" / f"{name}.md"
        for name in ("control_planes", "evidence", "gpus", "importing", "intervals", "learning")
    ),
)
FAR_OFF = ROOT / "simulator" / "costs" / "presets" / "far_off.yaml"
SCHEMA = "rollcast-published/1"

HEAD = ("claim", "published", "forecast", "error", "assumed")
INTRO = """\
# Published behaviour against the forecast

Made by `make evidence` from `published.json`. Nothing is tuned to these figures: where the forecast
misses, the table says so. Error is forecast over published, less one, unless it says points or
words.
"""
_TABLE = re.compile(r"(<!-- table: ([\w-]+) -->\n?).*?(<!-- end of table -->)", re.DOTALL)


class MarkerError(ValueError):
    """A document asks for a table that nothing makes, or lacks the end of one."""


@cache
def papers() -> Mapping[str, Mapping[str, Any]]:
    """What ``claims/papers.yaml`` says of each paper."""
    text = (ROOT / "benchmarks" / "claims" / "papers.yaml").read_text("utf-8")
    declared: Mapping[str, Mapping[str, Any]] = yaml.safe_load(text)
    return declared


def section_of(paper: str) -> Section:
    """The rows of a paper, computed. Raises KeyError for one that is not declared."""
    declared = papers()[paper]
    module = import_module(f"benchmarks.claims.{paper}")
    tables = module.tables() if hasattr(module, "tables") else []
    return Section(**declared, rows=module.rows(), tables=tables)


def read_sections(folder: Path = RESULTS) -> dict[str, Section]:
    """The sections of ``published.json`` by paper."""
    sections = {}
    for paper, keys in _results(folder, "published")["sections"].items():
        rows = [Row(**row) for row in keys["rows"]]
        tables = [(title, table) for title, table in keys["tables"]]
        sections[paper] = Section(**{**keys, "rows": rows, "tables": tables})
    return sections


def write_sections(sections: Mapping[str, Section]) -> None:
    """Writes ``published.json`` and ``published.md``."""
    content = {paper: asdict(sections[paper]) for paper in papers() if paper in sections}
    write_json(RESULTS / "published.json", {"schema": SCHEMA, "sections": content})
    write_text(RESULTS / "published.md", page(list(read_sections().values())))


def page(sections: Sequence[Section]) -> str:
    """``published.md``: every section with its rows, misses and further tables."""
    parts = [INTRO]
    for section in sections:
        parts.append(f"## {section.title} ({section.source})\n\n{section.given}\n")
        parts.append(markdown_table(HEAD, [list(asdict(row).values()) for row in section.rows]))
        parts.append("\n".join(f"- {miss}" for miss in section.misses) + "\n")
        for title, table in section.tables:
            parts.append(f"{title}:\n\n{markdown_table(table[0], table[1:])}")
    return "\n".join(parts)


# Tables of documents, from the folder of results


def _results(folder: Path, name: str) -> Any:
    return json.loads((folder / f"{name}.json").read_text("utf-8"))


def published(folder: Path) -> str:
    """Every claim of a paper, and its forecast."""
    rows = [
        (section.title, row.claim, row.published, row.forecast, row.error)
        for section in read_sections(folder).values()
        for row in section.rows
    ]
    return markdown_table(("paper", *HEAD[:4]), rows)


def validation(folder: Path) -> str:
    """Each source of the validation suite: how far held-out figures are off, and targets met."""
    rows = []
    for source in _results(folder, "validation/validation")["sources"]:
        checks = [check for check in source["checks"] if check["target"] is not None]
        errors = [abs(c["value"]) for c in checks if c["target"] and "outside" not in c["name"]]
        if errors:
            errors_text = f"{min(errors):.1%} to {max(errors):.1%}"
            met = sum(check["met"] for check in checks)
            rows.append((source["title"], errors_text, f"{met} of {len(checks)}"))
    return markdown_table(("held-out figures", "error of a group, least and most", "targets"), rows)


def real_policies(folder: Path) -> str:
    """The policies on the real engine, as `benchmarks.real_policies` found them."""
    return (folder / "real_policies.md").read_text("utf-8").strip() + "\n"


def speed(folder: Path) -> str:
    """Seconds and memory of the simulator and of imports."""
    rows = []
    for row in _results(folder, "speed")["rows"]:
        taken = f"{row['wall_s']:.3g} s, {row['peak_mb']:.0f} MB"
        rows.append((row["work"].strip(), taken, row["target"], row["best_peer"]))
    return markdown_table(("work", "rollcast", "target", "fastest other simulator"), rows)


def prefix_reuse(folder: Path) -> str:
    """Forward and backward with a shared prefix over the best dense microbatching."""
    rows = []
    for point in _results(folder, "prefix_reuse")["curve"]:
        shape = [point[key] for key in ("prompt_tokens", "response_tokens", "rollouts", "groups")]
        seconds = [f"{point[key]:.2f}" for key in ("dense_s", "reuse_s")]
        ratios = [f"{point[key]:.2f}x" for key in ("ratio", "token_bound")]
        rows.append([*map(str, shape), *seconds, *ratios])
    head = ("prompt", "response", "group", "groups", "dense, s", "reuse, s", "speed-up", "bound")
    return markdown_table(head, rows)


def prefix_memory(folder: Path) -> str:
    """Seconds and peak memory of one group, by layout."""
    rows = []
    for plan in _results(folder, "prefix_reuse")["memory"]:
        name = f"{plan['layout']}, {plan['rows']} rollouts a microbatch"
        again = {"none": "nothing", "all": "everything", "prefix": "the prefix"}[plan["checkpoint"]]
        rows.append((name, again, f"{plan['seconds']:.1f}", f"{plan['peak_mib']:.0f}"))
    return markdown_table(("layout", "recomputed", "seconds", "peak, MiB"), rows)


def engine_overhead(folder: Path) -> str:
    """Seconds of the adapter over those of ``LLM.generate``."""
    content = _results(folder, "engine_overhead")
    names = {
        "llm_default": "`LLM.generate` as it comes",
        "llm_matched": "with the adapter's settings",
    }
    rows = [
        (names[key], *(f"{100 * (ratio[clock] - 1):+.1f} %" for clock in ("wall", "cpu")))
        for key, ratio in content["ratio"].items()
    ]
    return markdown_table(("the adapter against", "seconds", "processor seconds"), rows)


def intervals(folder: Path) -> str:
    """Quick intervals against those of whole runs, and how many are of nearly the same width."""
    results = _results(folder, "interval_quality")["rows"]
    rows = []
    for row in results:
        unit = "x" if row.get("speedup") else " s"
        ends = [f"{row[key][0]:.4g} to {row[key][1]:.4g}" for key in ("quick", "whole")]
        widths = [f"{row[key]:.2f}" for key in ("width_ratio", "width_error")]
        rows.append([row["case"], f"{row['point']:.4g}{unit}", *ends, *widths])
    head = ("case", "figure", "quick 90 %", "whole runs 90 %", "width, quick over whole", "error")
    inside = sum(row["within"] for row in results)
    return f"{markdown_table(head, rows)}\n{inside} of {len(rows)} widths are within 15 %.\n"


def own_run(folder: Path) -> str:
    """Forecasts of a genuine TRL run with other settings, at two loads of the machine."""
    names = {
        "group_16": "16 rollouts per prompt",
        "cap_96": "limit 96",
        "base": "the first run repeated",
    }
    found = {(row["run"], row["round"]): row for row in _results(folder, "own_run")["rows"]}
    rounds = sorted({name for _, name in found}, reverse=True)

    def cell(row: Mapping[str, Any]) -> str:
        forecast, low, high = (row["forecast"][key] for key in ("run_s", "low_s", "high_s"))
        interval = f"{forecast:.3g} s ({low:.3g} to {high:.3g})"
        return f"{interval}, {row['measured']['run_s']:.3g} s: {100 * row['error']:+.1f} %"

    rows = [(text, *(cell(found[run, name]) for name in rounds)) for run, text in names.items()]
    heads = [f"{name} machine: forecast (90 %), measured" for name in rounds]
    return markdown_table(("run", *heads), rows)


def held_out(names: Sequence[str], folder: Path) -> str:
    """All forecasts of each of these campaigns in one row a mode."""
    rows = []
    for name in names:
        for mode, of in _campaigns(folder)[name]["overall"].items():
            inside, noise = of["coverage"], of["noise"]
            apart = "-"
            if noise["pairs"]:
                apart = f"{_share(noise['run_time'])}, {_share(noise['run_time_largest'])}"
            runs = round(inside["runs"] * inside["run_count"])
            rows.append(
                (
                    *((CAMPAIGNS[name].title, mode) if len(names) > 1 else (mode,)),
                    f"{inside['run_count']}, {inside['step_count']:,}",
                    f"{_share(of['run_time'])}, {_share(of['largest'])}",
                    _share(of["step_s"]),
                    apart,
                    "{} of {}".format(*of["ranked"]),
                    f"{100 * inside['steps']:.0f} %, {runs} of {inside['run_count']}",
                )
            )
    head = (
        "held-out runs, steps",
        "error of the run time: median, largest",
        "error of a step's time, median",
        "two runs of one policy apart: median, largest",
        "pairs of policies ranked right",
        "inside 90 % intervals: steps, runs",
    )
    return markdown_table((*(("runs", "mode") if len(names) > 1 else ("mode",)), *head), rows)


def held_out_runs(names: Sequence[str], folder: Path) -> str:
    """The held-out runs of each of these campaigns, those of one policy and setting in one row."""
    rows = []
    for name in names:
        by_policy: dict[str, list[Mapping[str, Any]]] = {}
        for run in _campaigns(folder)[name]["runs"]:
            if run["held_out"]:
                by_policy.setdefault(run["policy"], []).append(run)
        for policy, runs in by_policy.items():
            forecasts = [[run[mode] for run in runs] for mode in ("replay", "predict")]
            replays, predictions = forecasts
            stale = zip(*(replay["staleness"] for replay in replays), strict=True)
            rows.append(
                (
                    *((CAMPAIGNS[name].title,) if len(names) > 1 else ()),
                    f"`{policy}`",
                    _span([run["measured_s"] / run["steps"] for run in runs], ".2f"),
                    _span([100 * of["error"] for of in replays], "+.1f"),
                    _span([100 * of["rollout_error"] for of in replays], "+.0f"),
                    _span([100 * of["train_error"] for of in replays], "+.0f"),
                    _span([100 * of["error"] for of in predictions], "+.1f"),
                    "; ".join(_span(values, ".2f") for values in stale),
                )
            )
    head = (
        "policy [setting]",
        "measured, s a step",
        "replay, %",
        "its rollout, %",
        "its update, %",
        "predict, %",
        "staleness: measured; replayed",
    )
    return markdown_table((*(("runs",) if len(names) > 1 else ()), *head), rows)


def slowdown(folder: Path) -> str:
    """How much a replica and a trainer on two cores slow each other, by campaign."""
    rows = []
    for name, of in _campaigns(folder).items():
        if of["beside"]:
            cells = [f"{factor:.2f}x ({error:.2f})" for factor, error in of["beside"].values()]
            rows.append((CAMPAIGNS[name].title, *cells))
    return markdown_table(("runs", "an iteration, while the trainer works", "an update"), rows)


def unseen(folder: Path) -> str:
    """The README's sentence on forecasts of real runs."""
    campaigns = _campaigns(folder)

    def error(mode: str, names: Sequence[str], most: str = "") -> str:
        of = [campaigns[name]["overall"][mode] for name in names]
        median = _span([100 * each["run_time"] for each in of], ".1f")
        return f"{median} % ({most}{100 * max(each['largest'] for each in of):.0f} %)"

    beside = ("overlap", "idle")
    text = (
        "Calibrated on a few synchronous real runs, run times of unseen policies are off by a "
        f"median of {error('replay', ['policies'], 'at most ')} in replay and "
        f"{error('predict', ['policies'])} in prediction; where rollouts overlap with training, "
        f"by {error('replay', beside)} and {error('predict', beside)}."
    )
    return textwrap.fill(text, 106, initial_indent=" " * 24, subsequent_indent="  ").lstrip()


def pearl(folder: Path) -> str:
    """PEARL's figures of SWE-bench: the range of three models, by what answers take."""
    rows = [("PEARL, measured", "216 s", "10.3 %")]
    for key, answers in {
        "0.28 s": "each answer takes the published median",
        "tail": "answers as the preset `swe` has them, with a tail",
    }.items():
        of = [v for k, v in _results(folder, "pearl").items() if k.startswith(f"rollouts, {key}")]
        gains = [100 * (1 - gpus["24"][0] / gpus["16"][0]) for gpus in of]
        rows.append(
            (
                answers,
                f"{_span([gpus['256'][0] for gpus in of], '.0f')} s",
                f"{_span(gains, '.1f')} %",
            )
        )
    head = ("", "rollout phase with unlimited GPUs", "less with 24 rollout GPUs than with 16")
    return markdown_table(head, rows)


def _campaigns(folder: Path) -> Mapping[str, Any]:
    found: Mapping[str, Any] = _results(folder, "held_out")["campaigns"]
    return found


def _share(value: float) -> str:
    return f"{100 * value:.1f} %"


def _span(values: Sequence[float], form: str) -> str:
    """The least and the greatest, or the one value."""
    ends = [f"{end:{form}}" for end in (min(values), max(values))]
    return " to ".join(dict.fromkeys(ends))


TABLES: Mapping[str, Callable[[Path], str]] = {
    "published": published,
    "validation": validation,
    "real-policies": real_policies,
    "speed": speed,
    "prefix-reuse": prefix_reuse,
    "prefix-memory": prefix_memory,
    "engine-overhead": engine_overhead,
    "intervals": intervals,
    "own-run": own_run,
    "policies": partial(held_out, ["policies"]),
    "policies-runs": partial(held_out_runs, ["policies", "settings"]),
    "overlap": partial(held_out, ["overlap", "idle", "several"]),
    "overlap-runs": partial(held_out_runs, ["overlap", "idle", "several"]),
    "slowdown": slowdown,
    "gpu-run": from_presets.table,
    "gpu-engine": engine.table,
    "gpu-updates": lambda folder: judge.table(judge.kept()),
    "gpu-prefix": lambda folder: judge.gains_table(judge.kept()),
    "turns": partial(held_out, ["turns", "beside"]),
    "pearl": pearl,
    "memory": memory_table,
    "memory-sentence": memory_sentence,
    "side-by-side": lambda folder: side_by_side.table(
        _results(folder, "control_planes")["side_by_side"]
    ),
    "weak": run_tables.weak,
    "rl-runs": run_tables.rl_runs,
    "rl-reliability": run_tables.reliability,
    "rl-runs-sentence": run_tables.rl_runs_sentence,
    "rl-rounds": run_tables.rounds,
    "rl-rounds-sentence": run_tables.rounds_sentence,
    "unseen": unseen,
    "turns-runs": partial(held_out_runs, ["turns", "beside"]),
    "gpu": partial(held_out_runs, ["gpu", "gpu-swapped", "gpu-policies"]),
    "learning": learning.validated,
    "learning-fitted": learning.fitted,
    "learning-policies": learning.policies,
    "learning-papers": learning.papers,
    "learning-public": learning.public,
    "learning-lengths": learning.lengths,
    "learning-real": learning.real,
    "learning-ends": learning.ends,
    "learning-edges": learning.edges,
    "learning-whole": learning.whole,
    "learning-pods": learning.pods,
}


def filled(text: str, name: str, folder: Path = RESULTS) -> str:
    """A document with its tables anew. Raises MarkerError that names the document."""

    def table(match: re.Match[str]) -> str:
        begin, table, end = match.groups()
        if table not in TABLES:
            raise MarkerError(f"{name}: no table {table!r}; there are {', '.join(TABLES)}")
        return f"{begin}{TABLES[table](folder)}{end}"

    if len(_TABLE.findall(text)) != text.count("<!-- table:"):
        raise MarkerError(f"{name}: a table without <!-- end of table -->")
    return _TABLE.sub(table, text)


def main(arguments: list[str] | None = None) -> int:
    """Computes, keeps and writes; exit code 2 with one sentence for a wrong marker."""
    options = parser(__doc__)
    options.add_argument("--only", choices=tuple(papers()), action="append", metavar="PAPER")
    options.add_argument("--tables", action="store_true", help="compute nothing")
    given = options.parse_args(arguments)
    if not given.tables:
        sections = read_sections()
        for paper in given.only or papers():
            progress(paper)
            sections[paper] = section_of(paper)
            write_sections(sections)
    write_text(FAR_OFF, "\n".join(run_tables.lines(run_tables.far_off(RESULTS))) + "\n")
    try:
        for document in DOCUMENTS:
            write_text(document, filled(document.read_text("utf-8"), document.name))
    except MarkerError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
