"""``python -m benchmarks.validation.stack_presets``: writes what the validation suite fitted to all
published runs into the presets: ``phase_factors`` of stacks, what unusual models and GPUs add."""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from benchmarks.runner import RESULTS, ROOT, write_text
from benchmarks.validation.runs import ADDED, MEGATRON

STACKS = ROOT / "simulator" / "stacks"
SPREADS = ROOT / "simulator" / "costs" / "presets" / "spreads.yaml"
KEYS: Mapping[str, tuple[str, ...]] = {
    "generation": ("decode", "prefill"),
    "log_prob": ("log_prob",),
    "update": ("update",),
    "sync": ("sync",),
}
"""Of ``phase_factors``, by group of phases."""
_EFFECT = re.compile(r"(\w+) ([\d.]+) \(sd ([\d.]+)\)")
_ADDED = re.compile(r"(\w+) ([\d.]+)")
_FIGURE = re.compile(r"\s+\w+: [\d.]+$")


def fitted(text: str) -> tuple[dict[str, dict[str, str]], dict[str, dict[str, str]]]:
    """Figures of ``phase_factors`` by stack, and those that unusual models and GPUs add, as
    `benchmarks.validation.runs.stack_texts` tells them after a colon."""
    stacks: dict[str, dict[str, str]] = {}
    added: dict[str, dict[str, str]] = {kind: {} for kind in ADDED}
    for part in text.rpartition(": ")[2].split("; "):
        kinds = [kind for kind, (text, _) in ADDED.items() if part.startswith(text)]
        for kind in kinds:
            for group, sd in _ADDED.findall(part.removeprefix(ADDED[kind][0])):
                added[kind] |= dict.fromkeys(KEYS[group], sd)
        if kinds:
            continue
        stack, _, effects = part.partition(" ")
        its = stacks.setdefault(stack, {})
        found = {group: (factor, sd) for group, factor, sd in _EFFECT.findall(effects)}
        where = "megatron_" if effects.startswith(MEGATRON) else ""
        for group, keys in KEYS.items():
            for key in keys if group in found else ():
                factor, sd = found[group]
                own = {} if stack == "unknown" else {f"{where}{key}": factor}
                its |= own | {f"{where}{key}_sd": sd}
    return stacks, added


def with_factors(lines: list[str], figures: Mapping[str, str]) -> Iterator[str]:
    """A stack's file with these in each of its ``phase_factors``."""
    inside = False
    for line in lines:
        if re.fullmatch(r"\s+phase_factors:( &\w+)?", line):
            indent = " " * (len(line) - len(line.lstrip()) + 2)
            inside = True
            yield line
            yield from (f"{indent}{key}: {figure}" for key, figure in figures.items())
        elif not (inside and _FIGURE.fullmatch(line)):
            inside = False
            yield line


def write(results: Path = RESULTS / "validation" / "validation.json") -> None:
    """Rewrites the files."""
    content = json.loads(results.read_text("utf-8"))
    (source,) = (source for source in content["sources"] if source["key"] == "runs")
    stacks, added = fitted(source["calibrated"])
    for stack, figures in stacks.items():
        path = STACKS / stack / "costs.yaml"
        lines = path.read_text("utf-8").split("\n")
        write_text(path, "\n".join(with_factors(lines, figures)))
    text = SPREADS.read_text("utf-8")
    for kind, sds in added.items():
        inline = ", ".join(f"{key}: {sd}" for key, sd in sds.items())
        text = re.sub(rf"^  {kind}: {{.*$", f"  {kind}: {{{inline}}}", text, flags=re.M)
    write_text(SPREADS, text)


if __name__ == "__main__":
    write()
