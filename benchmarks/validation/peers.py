"""Where the forecast lies among other simulators' on the same 512 requests."""

from __future__ import annotations

from pathlib import Path

from benchmarks.validation.files import PUBLISHED, AbsentError, number, read_rows
from benchmarks.validation.serving import Request, serve
from benchmarks.validation.verdict import Case, Source
from rollcast.simulator.cluster.replica import EngineSpec
from rollcast.simulator.costs import RooflineCost
from rollcast.simulator.costs.presets.gpus import load_gpu
from rollcast.simulator.costs.presets.models import load_model
from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.results.read import read_json

FILE = "peer_workload.json"
ENGINE = EngineSpec(max_seqs=256, max_batched_tokens=8192, kv_tokens=421_000)
HOSTS = {  # seconds per iteration, and per rollout and iteration
    "kernels alone": (0.0, 0.0),
    "default": (1.0e-3, 1.0e-5),
    "vLLM of mid-2024": (1.28e-3, 62e-6),
}


def read_workload(path: Path) -> list[Request]:
    """Requests of a JSON file ``{"prompt": tokens, "out": [tokens, ...]}``, all at time 0.

    Raises AbsentError where there is no such file, ScenarioError where it has another form.
    """
    if not path.is_file():
        raise AbsentError(f"{path.name} is not in the data folder")
    try:
        content = read_json(path, path.name)
        prompt, lengths = content["prompt"], content["out"]
        whole = all(isinstance(n, int) and n >= 1 for n in [prompt, *lengths])
    except (ScenarioError, KeyError, TypeError):
        whole, lengths = False, []
    if not whole or not lengths:
        raise ScenarioError(path.name, 'is not {"prompt": tokens, "out": [tokens, ...]}')
    return [Request(prompt, tokens) for tokens in lengths]


def makespan_s(requests: list[Request], gpu: str, host: tuple[float, float]) -> float:
    """Last token of Llama-3.1-8B on one ``gpu``, host overhead as ``HOSTS`` spells it."""
    cost = RooflineCost(
        load_model("llama-3.1-8b"), load_gpu(gpu), host_s=host[0], host_per_rollout_s=host[1]
    )
    return max(served.end_s for served in serve(requests, ENGINE, cost))


def source(data: Path) -> Source:
    """Our makespan over each peer's, and where it lies in their band. Raises AbsentError."""
    requests = read_workload(data / FILE)
    peers = read_rows(PUBLISHED / "peers.csv", ("peer", "gpu", "makespan_s", "source"))
    cases, notes = [], []
    for gpu in dict.fromkeys(row["gpu"] for row in peers):
        ours = {name: makespan_s(requests, gpu, host) for name, host in HOSTS.items()}
        theirs = {
            row["peer"]: number(row, "makespan_s", "peers.csv", 1.0)
            for row in peers
            if row["gpu"] == gpu
        }
        cases += [
            Case(
                gpu,
                peer,
                "s",
                known,
                ours["default"],
                low=min(ours.values()),
                high=max(ours.values()),
            )
            for peer, known in theirs.items()
        ]
        low, high = min(theirs.values()), max(theirs.values())
        place = (ours["default"] - low) / (high - low)
        spelt = ", ".join(f"{name} {seconds:,.0f} s" for name, seconds in ours.items())
        inside = "inside" if 0 <= place <= 1 else "outside"
        notes.append(
            f"{gpu}: ours {spelt}; the peers' band is {low:,.0f} to {high:,.0f} s. The default is "
            f"{inside} it, at {place:.0%} of its width from the fast end."
        )
    return Source(
        "peers",
        "Other simulators on the same work",
        "BLIS, NVIDIA DynoSim and Vidur, each run on 512 requests at once (prompt 512, 2,338,923 "
        "new tokens, Llama-3.1-8B, one replica)",
        calibrated="nothing",
        held_out="all; a peer's forecast is not a measurement, so there is no target",
        assumed=(
            "the range of forecasts is over host overhead: none, the default, and that of vLLM of "
            "mid-2024 on an H100",
        ),
        cases=tuple(cases),
        misses=tuple(notes),
    )
