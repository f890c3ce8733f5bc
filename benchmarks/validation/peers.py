"""Where the forecast lies among other simulators' on the same 512 requests."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.validation.case import Case
from benchmarks.validation.files import PUBLISHED, AbsentError, column, read_table
from benchmarks.validation.serving import Request, serve
from benchmarks.validation.suite import Judged
from rollcast.simulator.cluster.replica import EngineSpec
from rollcast.simulator.costs import RooflineCost
from rollcast.simulator.costs.presets.gpus import load_gpu
from rollcast.simulator.costs.presets.models import load_model
from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.results.read import read_json

ENGINE = EngineSpec(max_seqs=256, max_batched_tokens=8192, kv_tokens=421_000)
HOSTS = {  # seconds per iteration, and per rollout and iteration
    "kernels alone": (0.0, 0.0),
    "default": (1.0e-3, 1.0e-5),
    "vLLM of mid-2024": (1.28e-3, 62e-6),
}


@dataclass(frozen=True, slots=True)
class Peer:
    """Another simulator's forecast."""

    peer: str
    gpu: str
    makespan_s: float = column(least=1.0)


def read(path: Path) -> list[Request]:
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


def makespan_s(requests: Sequence[Request], gpu: str, host: tuple[float, float]) -> float:
    """Last token of Llama-3.1-8B on one ``gpu``, host overhead as ``HOSTS`` spells it."""
    cost = RooflineCost(
        load_model("llama-3.1-8b"), load_gpu(gpu), host_s=host[0], host_per_rollout_s=host[1]
    )
    return max(served.end_s for served in serve(requests, ENGINE, cost))


def judge(requests: Sequence[Request]) -> Judged:
    """Our makespan over each peer's, and where it lies in their band."""
    peers = read_table(PUBLISHED / "peers.csv", Peer)
    cases, notes = [], []
    for gpu in dict.fromkeys(peer.gpu for peer in peers):
        ours = {name: makespan_s(requests, gpu, host) for name, host in HOSTS.items()}
        theirs = {peer.peer: peer.makespan_s for peer in peers if peer.gpu == gpu}
        guess, ends = ours["default"], (min(ours.values()), max(ours.values()))
        cases += [Case(gpu, p, "s", known, guess, "held out", *ends) for p, known in theirs.items()]
        low, high = min(theirs.values()), max(theirs.values())
        place = (guess - low) / (high - low)
        spelt = ", ".join(f"{name} {seconds:,.0f} s" for name, seconds in ours.items())
        inside = "inside" if 0 <= place <= 1 else "outside"
        notes.append(
            f"{gpu}: ours {spelt}; the peers' band is {low:,.0f} to {high:,.0f} s. The default is "
            f"{inside} it, at {place:.0%} of its width from the fast end."
        )
    return Judged(cases, notes=notes)
