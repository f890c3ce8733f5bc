"""Speed and memory of the simulator, one command: ``python benchmarks/speed.py``.

Each row runs in a process of its own, so that peak memory is its own. Wall-clock targets and the
best peer's figures (measured by others on a 2-core machine, on the same 512 lengths) stand beside
what was measured here. The peer workload's lengths are read from a file if ``--peer-workload``
names one (JSON: ``{"prompt": 512, "out": [...]}``); otherwise lengths of the same distribution
are drawn (lognormal, median 3,000, sd of the log 1.0, cap 16,384), which the table then says.
Commands are timed without intervals, which no peer gives.
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "speed.json"

SCENARIO = """
cluster: {{placement: colocated, replicas: {replicas}, routing: round_robin}}
engine: {{max_seqs: 256, max_batched_tokens: 8192, kv_tokens: 421000, prefix_caching: true}}
workload:
  batch_groups: {groups}
  group_size: {size}
  max_new_tokens: {cap}
  {lengths}
policy: {policy}
cost:
  linear:
    iteration_s: 6.0e-3
    per_rollout_s: 2.0e-5
    per_context_token_s: 2.2e-8
    per_prefill_token_s: 4.0e-6
    train_per_token_s: 1.0e-5
    train_fixed_s: 0.0
    sync_s: 1.0
steps: {steps}
seed: 0
"""


def lengths(peer: str | None, median: float = 3000, cap: int = 16384) -> str:
    """The lengths of a scenario: the peers' file, or the distribution it was drawn from."""
    if peer:
        return f"lengths: {{trace: {json.dumps(str(Path(peer).absolute()))}, repeat: true}}"
    family = f"family: lognormal, median_tokens: {median}, between_sd: 0.0, within_sd: 1.0"
    return f"prompt_tokens: 512\n  lengths: {{{family}}}"


def scenario(**given: object) -> str:
    values = {
        "replicas": 1,
        "groups": 512,
        "size": 1,
        "cap": 16384,
        "policy": "[]",
        "steps": 1,
        "lengths": lengths(None),
    }
    return SCENARIO.format(**{**values, **given})


def turns(factor: int) -> str:
    """A scenario of 1,024 rollouts of 20 turns, each of about ``25 * factor`` tokens."""
    spec = (
        f"lengths: {{family: lognormal, median_tokens: {25 * factor}, between_sd: 0.2, "
        "within_sd: 0.2}\n  prompt_tokens: 1000\n"
        "  turns: {family: lognormal, median: 20, between_sd: 0, within_sd: 0, max_turns: 20, "
        f"observation_tokens: {50 * factor}, length_sd: 0.5}}"
    )
    text = scenario(replicas=8, groups=64, size=16, cap=4000, lengths=spec)
    text = text.replace("kv_tokens: 421000", "kv_tokens: 2000000")
    text = text.replace("routing: round_robin", "routing: session_affinity")
    away = "environment: {slots: 512, turn_s: {family: lognormal, median_s: 3, sd: 1.2}}\n"
    return text.replace("policy:", f"{away}policy:")


def in_process(text: str, repeats: int) -> dict[str, float]:
    """Wall seconds of a simulation, without imports and reading; the least of several."""
    from rollcast.simulator.scenario.file import parse_scenario
    from rollcast.simulator.studies.simulate import from_raw, simulate

    best, result = float("inf"), None
    for _ in range(repeats):
        checked = from_raw(parse_scenario(text))
        start = time.perf_counter()
        result = simulate(checked)
        best = min(best, time.perf_counter() - start)
    assert result is not None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {
        "wall_s": best,
        "peak_mb": peak,
        "makespan_s": result.summary["makespan_s"],
        "tokens": result.summary["generated_tokens"],
        "rollouts": result.summary["rollouts"],
    }


def isolated(text: str, repeats: int = 1) -> dict[str, float]:
    """`in_process` in a process of its own."""
    code = (
        "import sys, json; sys.path.insert(0, sys.argv[1]); from speed import in_process;"
        "print(json.dumps(in_process(sys.stdin.read(), int(sys.argv[2]))))"
    )
    run = subprocess.run(
        [sys.executable, "-c", code, str(HERE), str(repeats)],
        input=text,
        capture_output=True,
        text=True,
        check=True,
    )
    return dict(json.loads(run.stdout))


def command_line(text: str, *options: str, repeats: int = 3) -> dict[str, float]:
    """Wall seconds and peak memory of the command line, start included; the least of several."""
    best = {"wall_s": float("inf"), "peak_mb": float("inf")}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "scenario.yaml"
        path.write_text(text)
        for i in range(repeats):
            command = ["simulate", str(path), "--out", f"{folder}/out{i}", *options]
            code = (
                "import resource, subprocess, sys, time; start = time.perf_counter();"
                "subprocess.run([sys.executable, '-m', 'rollcast', *sys.argv[1:]],"
                " check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL);"
                "wall = time.perf_counter() - start;"
                "print(wall, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024)"
            )
            run = subprocess.run(
                [sys.executable, "-c", code, *command], capture_output=True, text=True, check=True
            )
            wall, peak = map(float, run.stdout.split())
            best["wall_s"] = min(best["wall_s"], wall)
            best["peak_mb"] = min(best["peak_mb"], peak)
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer-workload", metavar="FILE.json")
    parser.add_argument("--quick", action="store_true", help="leave out the 1,000 steps")
    options = parser.parse_args()
    work = lengths(options.peer_workload)
    peer = scenario(lengths=work)
    rows: list[dict[str, object]] = []

    def row(name: str, target: str, best_peer: str, measured: dict[str, float]) -> None:
        rows.append({"work": name, "target": target, "best_peer": best_peer, **measured})
        wall, peak = measured["wall_s"], measured["peak_mb"]
        print(f"{name:<58} {wall:8.3f} s {peak:7.0f} MB   target {target:<18} peer {best_peer}")

    row("peer workload, in process", "0.10 s", "1.34 s", isolated(peer, 5))
    row(
        "  command line, --no-plot",
        "0.6 s, 160 MB",
        "1.34 s, 161 MB",
        command_line(peer, "--no-plot", "--draws", "0"),
    )
    row("  command line, with the picture", "1.3 s", "-", command_line(peer, "--draws", "0"))
    big = scenario(replicas=16, groups=8192, lengths=work)
    row("8,192 requests on 16 replicas", "2 s, 300 MB", "50.9 s, 1.16 GB", isolated(big, 2))
    if not options.quick:
        april = scenario(
            replicas=8, groups=32, size=8, steps=1000, policy="[{april: {over_sampling: 2.0}}]"
        )
        row("1,000 steps of APRIL, 512 in flight, 8 replicas", "60 s", "none can", isolated(april))
    print("\ncost against rollouts (8 replicas) and against tokens per rollout")
    for count in (512, 1024, 2048, 4096, 8192, 16384):
        row(f"  {count} rollouts", "linear", "-", isolated(scenario(replicas=8, groups=count)))
    for factor in (1, 4, 16, 64):
        spec = lengths(None, 500 * factor, 2000 * factor)
        text = scenario(replicas=8, groups=1024, cap=2000 * factor, lengths=spec)
        text = text.replace("kv_tokens: 421000", f"kv_tokens: {100_000 * factor}")
        row(f"  1,024 rollouts, median {500 * factor} tokens", "flat", "-", isolated(text))
    print("\nrollouts of 20 turns, 8 replicas, environments of 3 s with 512 slots")
    for factor in (1, 4, 16):
        text = turns(factor)
        name = f"  1,024 rollouts x 20 turns of {25 * factor} tokens"
        row(name, "3 s, 300 MB, flat", "none can", isolated(text, 2))
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(
        json.dumps(
            {
                "machine": f"{platform.machine()}, {platform.python_implementation()} "
                f"{platform.python_version()}",
                "peer_workload": bool(options.peer_workload),
                "rows": rows,
            },
            indent=1,
        )
        + "\n"
    )


if __name__ == "__main__":
    main()
