"""``rollcast serve``: simulated engines over HTTP."""

from __future__ import annotations

import ipaddress
import sys
from typing import Annotated

import typer

from rollcast.simulator.cli import arguments as args
from rollcast.simulator.cli.stopping import until_stopped
from rollcast.simulator.cli.trust import TrustModules, trust
from rollcast.simulator.errors import ScenarioError

MOST_SPEED = 1000.0


def serve(
    scenario: args.ScenarioPath,
    speed: Annotated[
        float,
        typer.Option("--speed", metavar="X", help="Simulated seconds that pass in a real one."),
    ] = 1.0,
    host: Annotated[
        str, typer.Option("--host", metavar="ADDRESS", help="Address to listen at.")
    ] = "127.0.0.1",
    port: Annotated[
        int,
        typer.Option(
            "--port",
            metavar="N",
            help="Port of the first replica; the others have the next ones, and a router before "
            "all the one behind them.",
        ),
    ] = 8000,
    error_share: Annotated[
        float,
        typer.Option(
            "--error-share", metavar="P", help="Share of requests that fail with status 500."
        ),
    ] = 0.0,
    settings: args.Settings = None,
    seed: args.Seed = None,
    trust_modules: TrustModules = False,
) -> None:
    """Serve simulated engines over HTTP, in scaled real time.

    Each replica answers at a port of its own like a vLLM server (completions, chat, /metrics,
    pause, sleep, weights) and like an SGLang one (/generate). Lengths, costs and limits are the
    scenario's. Serves until it is interrupted. Needs rollcast[serve].
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
    try:
        from rollcast.simulator.virtual.http.serve import serve as run
    except ImportError:
        raise ScenarioError("", "serving needs aiohttp: pip install 'rollcast[serve]'") from None
    if host != "localhost" and not _is_loopback(host):
        print(f"serving at {host}: whoever reaches it can use the engines", file=sys.stderr)

    def ready(addresses: list[str]) -> None:
        for number, address in enumerate(addresses[:-1]):
            print(f"replica {number}: {address}")
        print(f"router: {addresses[-1]}", flush=True)

    def late(seconds: float) -> None:
        print(
            f"rollcast: requests kept the server busy for {seconds:.2g} s without a pause; answers "
            f"came up to {seconds * speed:.3g} simulated s late; a lower --speed is truer",
            file=sys.stderr,
        )

    with until_stopped():
        run(
            checked,
            speed=speed,
            host=host,
            port=port,
            ready=ready,
            late=late,
            error_share=error_share,
        )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        raise ScenarioError("--host", f"is no address: {host!r}") from None
