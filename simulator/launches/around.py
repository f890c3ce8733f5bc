"""What the machine's own words say of a launch's GPUs and host memory: Slurm's headers, torchrun,
srun, the environment."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress

from rollcast.simulator.costs.presets.gpus import named_gpu
from rollcast.simulator.launches.pieces import Text, cut, known, place_of, plain, shown
from rollcast.simulator.stacks.launch import VARIABLE, Given, Launch
from rollcast.simulator.stacks.settings import Place, Setting

_HEADER = re.compile(r"#SBATCH\s+(-{1,2}[\w-]+)(?:[=\s]\s*(\S+))?")
_OURS = {
    **{"--nodes": "run.nodes", "-N": "run.nodes", "--nnodes": "run.nodes"},
    **{"--num-nodes": "run.nodes", "--gpus-per-node": "run.gpus_per_node"},
    **{"--gres": "run.gpus_per_node", "--nproc-per-node": "run.gpus_per_node"},
    "--num-gpus": "run.gpus_per_node",
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


_OF_SLURM = {
    "SLURM_NNODES": ("run.nodes", ("--nodes", "-N")),
    "SLURM_JOB_NUM_NODES": ("run.nodes", ("--nodes", "-N")),
    "SLURM_GPUS_PER_NODE": ("run.gpus_per_node", ("--gpus-per-node",)),
    "SLURM_GPUS_ON_NODE": ("run.gpus_per_node", ("--gpus-per-node", "--gres")),
}
"""Variables that sbatch sets, after its manual: our key, and the options that set them."""


def slurm(machine: Mapping[str, Setting]) -> Mapping[str, str]:
    """The variables that Slurm sets for what a script's headers say. machine: of `headers`."""
    found = {}
    for name, (ours, options) in _OF_SLURM.items():
        said = machine.get(ours)
        if said is not None and said.theirs.removeprefix("#SBATCH ") in options:
            found[name] = str(said.value)
    return found


def wandb(given: Iterable[Given]) -> Mapping[str, Setting]:
    """The machine of a run whose configuration Weights & Biases wrote, by our key: one node's."""
    found: dict[str, Setting] = {}
    for item in given:
        last = item.key.rpartition(".")[2]
        if last == "gpu" and (preset := named_gpu(str(item.value))) is not None:
            found["gpu"] = Setting("gpu", preset, item.key, item.place)
        elif last == "gpu_count" and isinstance(item.value, int) and 0 < item.value <= 1024:
            found["run.gpus_per_node"] = Setting(
                "run.gpus_per_node", item.value, item.key, item.place
            )
    return found


LAUNCHERS = ("accelerate", "torchrun", "deepspeed")


def options(words: Sequence[Text], default: Place) -> Iterator[tuple[str, Text, Place]]:
    """Options with their values, hyphens as underscores, ``--a b`` and ``--a=b`` alike; one without
    a value is true."""
    for at, text in enumerate(words):
        name = shown(text)
        if not name.startswith("--") or (text and text[0].why):
            continue
        key, equals, _ = name[2:].partition("=")
        place = place_of(text, default)
        if equals:
            yield key.replace("-", "_"), cut(text, len(key) + 3)[1], place
        elif at + 1 < len(words) and not shown(words[at + 1]).startswith("--"):
            yield key.replace("-", "_"), words[at + 1], place
        else:
            yield key.replace("-", "_"), known("true", place), place


def included(text: str) -> Mapping[str, int]:
    """Nodes and GPUs of each in ``NODE:0,1@NODE:0,1`` of deepspeed's ``--include``
    (parse_resource_filter of deepspeed/launcher/runner.py), by the names of its own options;
    nothing of nodes that differ, and no GPUs of nodes of which all are taken."""
    named = [re.fullmatch(r"[\w.-]+(?::(\d+(?:,\d+)*))?", node) for node in text.split("@")]
    if not all(named):
        return {}
    counts = {len(node[1].split(",")) if node[1] else 0 for node in named if node}
    if len(counts) > 1:
        return {}
    gpus = counts.pop()
    return {"num_nodes": len(named)} | ({"num_gpus": gpus} if gpus else {})


def launchers(words: Sequence[Text], default: Place) -> Mapping[str, Setting]:
    """The words of torchrun, deepspeed or srun before a program, by our key."""
    found: dict[str, Setting] = {}
    for name, value, place in options(words, default):
        _take(found, f"--{name.replace('_', '-')}", plain(value) or "", place, "")
    return found


def of_ray(words: Sequence[Text], default: Place) -> Mapping[str, Text]:
    """The variables that ``ray job submit --runtime-env-json`` gives a program; none where it is no
    JSON with ``env_vars``."""
    found: dict[str, Text] = {}
    for name, text, place in options(words, default):
        if name == "runtime_env_json":
            with suppress(ValueError, AttributeError):  # no JSON, no table
                said = json.loads(shown(text)).get("env_vars", {})
                found |= {key: known(str(value), place) for key, value in said.items()}
    return found


_COUNTED: Sequence[tuple[str, str, Callable[[str], int]]] = (
    ("NPROC_PER_NODE", r"\d+", int),
    ("CUDA_VISIBLE_DEVICES", r"\d+(?:,\d+)*,?", lambda text: len(re.findall(r"\d+", text))),
)


_V1 = "VLLM_USE_V1"


def environment(
    variables: Mapping[str, object], default: Place, stack: Launch
) -> Mapping[str, Setting]:
    """The GPUs of a node, and the nodes of a program that starts torchrun by itself, as swift does
    (swift/cli/main.py), by its environment, where the stack has no number of its own; and what it
    says of PyTorch's allocator and of vLLM's engine."""
    found = dict(_allocator(variables, default))
    which, place = _told(variables, _V1, default)
    if which:
        found["run.engine_v1"] = Setting("run.engine_v1", which, _V1, place)
    key = "run.gpus_per_node"
    if any(one.has_default for one in stack.keys.get(key, ())):
        return found
    for name, form, count in _COUNTED:
        gpus = _counted(variables, key, name, form, count, default)
        if gpus is None:
            continue
        found[key] = gpus
        nodes = _counted(variables, "run.nodes", "NNODES", r"\d{1,5}", int, default)
        if name == "NPROC_PER_NODE" and nodes is not None:
            found[nodes.key] = nodes
        break
    return found


def _allocator(variables: Mapping[str, object], default: Place) -> Iterator[tuple[str, Setting]]:
    """Whether its segments may grow (torch's page on CUDA semantics)."""
    key = "run.expandable_segments"
    for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
        text, place = _told(variables, name, default)
        said = re.search(r"expandable_segments\s*:\s*(true|false)", text, re.IGNORECASE)
        if said:
            yield key, Setting(key, said[1].lower() == "true", name, place)


def of_stack(variables: Mapping[str, object], default: Place, stack: Launch) -> Iterator[Given]:
    """What variables of the stack's own say, of those that its table of keys has."""
    for key in stack.variables:
        text, place = _told(variables, key.removeprefix(VARIABLE), default)
        if text:
            yield Given(key, text, place)


def _counted(
    variables: Mapping[str, object],
    key: str,
    name: str,
    form: str,
    count: Callable[[str], int],
    default: Place,
) -> Setting | None:
    """What a variable says by our key; None where it is not there, or of another form."""
    text, place = _told(variables, name, default)
    return Setting(key, count(text), name, place) if re.fullmatch(form, text) else None


def _told(variables: Mapping[str, object], name: str, default: Place) -> tuple[str, Place]:
    """A variable's text, "" where it has none that is known, and the line that sets it."""
    value = variables.get(name)
    if not isinstance(value, tuple):
        return "", default
    return plain(value) or "", place_of(value, default)


_SLURM_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def _slurm_bytes(text: str) -> int:
    """Of ``--mem``, in MiB unless a unit follows; 0, which also means all, for no size."""
    match = re.fullmatch(r"([0-9]{1,9})([KMGT]?)B?", text.upper())
    return int(match[1]) * _SLURM_UNITS[match[2] or "M"] if match else 0


def _take(found: dict[str, Setting], name: str, value: str, place: Place, before: str) -> None:
    if name == "--mem" and (size := _slurm_bytes(value)):
        key = "run.host_memory_bytes"
        found[key] = Setting(key, size, f"{before}{name}", place)
    ours = _OURS.get(name)
    match = re.fullmatch(r"(?:gpu(?::[\w.-]+)?:|[\w-]+:)?(\d{1,5})", value)
    if ours and match:
        found[ours] = Setting(ours, int(match[1]), f"{before}{name}", place)
