"""What the machine's own words say of a launch's GPUs: Slurm's headers, torchrun, srun."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from rollcast.simulator.launches.pieces import Text, place_of, plain
from rollcast.simulator.stacks.settings import Place, Setting

_HEADER = re.compile(r"#SBATCH\s+(-{1,2}[\w-]+)(?:[=\s]\s*(\S+))?")
_OURS = {
    **{"--nodes": "run.nodes", "-N": "run.nodes", "--nnodes": "run.nodes"},
    **{"--gpus-per-node": "run.gpus_per_node", "--gres": "run.gpus_per_node"},
    **{"--nproc_per_node": "run.gpus_per_node", "--nproc-per-node": "run.gpus_per_node"},
    **{"--num_nodes": "run.nodes", "--num_gpus": "run.gpus_per_node"},
    **{"--ntasks-per-node": ""},
}


def headers(text: str, name: str) -> Mapping[str, Setting]:
    """``#SBATCH`` lines at the head of a script, by our key. name: of the file, for places."""
    found: dict[str, Setting] = {}
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip() and not line.startswith("#"):
            break
        match = _HEADER.match(line)
        if match:
            _take(found, match[1], match[2] or "", Place(name, number), "#SBATCH ")
    return found


def launchers(words: Sequence[Text], default: Place) -> Mapping[str, Setting]:
    """The words of torchrun, deepspeed or srun before a program, by our key."""
    found: dict[str, Setting] = {}
    for name, value, place in pairs(words, default):
        _take(found, name, value, place, "")
    return found


def pairs(words: Sequence[Text], default: Place) -> Iterator[tuple[str, str, Place]]:
    """Options that are known, with their values, ``--a b`` and ``--a=b`` alike."""
    for at, text in enumerate(words):
        name = plain(text)
        if name is None or not name.startswith("-"):
            continue
        place = place_of(text, default)
        key, equals, value = name.partition("=")
        if equals:
            yield key, value, place
        elif at + 1 < len(words) and (after := plain(words[at + 1])) is not None:
            yield key, after, place


def _take(found: dict[str, Setting], name: str, value: str, place: Place, before: str) -> None:
    ours = _OURS.get(name)
    match = re.fullmatch(r"(?:gpu(?::[\w.-]+)?:|[\w-]+:)?(\d{1,5})", value)
    if ours and match:
        found[ours] = Setting(ours, int(match[1]), f"{before}{name}", place)
