"""``rollcast serve``: simulated engines over HTTP."""

from __future__ import annotations

import ipaddress
import sys
from typing import Annotated

from rollcast.simulator.cli import arguments as args
from rollcast.simulator.cli.arguments import TrustModules, option, trust
from rollcast.simulator.cli.stopping import until_stopped
from rollcast.simulator.errors import ScenarioError

MOST_SPEED = 1000.0
MOST_BURST_MS = 1000
BURST_MS = 5.0  # `simulator.virtual.pace.BURST_S`, which the command line imports late


def serve(
    scenario: args.ScenarioPath,
    speed: Annotated[
        float, option("--speed", "X", "Simulated seconds that pass in a real one.")
    ] = 1.0,
    host: Annotated[str, option("--host", "ADDRESS", "Address to listen at.")] = "127.0.0.1",
    port: Annotated[
        int,
        option(
            "--port",
            "N",
            "Port of the first replica; the others have the next ones, and a router before "
            "all the one behind them.",
        ),
    ] = 8000,
    error_share: Annotated[
        float, option("--error-share", "P", "Share of requests that fail with status 500.")
    ] = 0.0,
    burst_ms: Annotated[
        float,
        option(
            "--burst-ms",
            "MS",
            "Real milliseconds: requests that come less than this apart are of one instant of "
            "simulated time. 0: each has its own; for generators of load.",
        ),
    ] = BURST_MS,
    settings: args.Settings = None,
    seed: args.Seed = None,
    trust_modules: TrustModules = False,
) -> None:
    """Serve simulated engines over HTTP, in scaled real time.

    Each replica answers at a port of its own like a vLLM server (completions, chat, /metrics,
    pause, sleep, weights) and like an SGLang one (/generate). Lengths, costs and limits are the
    scenario's. Simulated time stands still while requests are read and answers written; GET
    /rollcast/clock, and the header x-rollcast-virtual-s of each answer, say what it is. Serves
    until it is interrupted.
    """
    from rollcast.simulator.studies.simulate import load

    if not 0 < speed <= MOST_SPEED:
        raise ScenarioError("--speed", f"must be above 0 and at most {MOST_SPEED:g}, got {speed:g}")
    if not 0 <= error_share < 1:
        raise ScenarioError("--error-share", f"must be at least 0 and below 1, got {error_share:g}")
    checked = load(scenario, *(settings or ()), seed=seed, trust_modules=trust(trust_modules))
    last = port + checked.shape.replicas
    if port < 1 or last > 65_535:
        raise ScenarioError("--port", f"ports {port} to {last} are needed; give one from 1 on")
    if not 0 <= burst_ms <= MOST_BURST_MS:
        raise ScenarioError("--burst-ms", f"must be from 0 to {MOST_BURST_MS}, got {burst_ms:g}")
    from rollcast.simulator.virtual.http.serve import serve as run
    from rollcast.simulator.virtual.pace import Pace

    if host != "localhost" and not _is_loopback(host):
        print(f"serving at {host}: whoever reaches it can use the engines", file=sys.stderr)

    def ready(addresses: list[str]) -> None:
        for number, address in enumerate(addresses[:-1]):
            print(f"replica {number}: {address}")
        print(f"router: {addresses[-1]}", flush=True)

    def stood(figures: dict[str, float]) -> None:
        print(f"rollcast: {_stood(figures)}", file=sys.stderr)

    figures: list[dict[str, float]] = []
    with until_stopped():
        run(
            checked,
            pace=Pace(speed, burst_ms / 1e3),
            host=host,
            port=port,
            ready=ready,
            stood=stood,
            ended=figures.append,
            error_share=error_share,
        )
    print(_table(figures[-1]))


def _stood(figures: dict[str, float]) -> str:
    return (
        f"simulated time has stood still for {figures['stood_s']:.3g} of {figures['real_s']:.3g} "
        f"real s, while requests were read and answers written; it passed "
        f"{figures['reached_speed']:.3g} times as fast as real time, where --speed is "
        f"{figures['speed']:g}. Take times from x-rollcast-virtual-s"
    )


def _table(figures: dict[str, float]) -> str:
    rows = (
        ("simulated time", "virtual_s", "s"),
        ("real time", "real_s", "s"),
        ("  of it, simulated time stood still", "stood_s", "s"),
        ("  of that, for the rest of a burst", "held_s", "s"),
        ("speed asked for", "speed", "x"),
        ("speed reached", "reached_speed", "x"),
    )
    return "\n".join(f"{what:<38}{figures[name]:>12.2f} {unit}" for what, name, unit in rows)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        raise ScenarioError("--host", f"is no address: {host!r}") from None
