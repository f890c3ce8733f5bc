"""The strategies of `simulator.testing.strategies`."""

from rollcast._own import own

own("simulator")

from simulator.testing.strategies import (  # noqa: E402
    Cycle,
    Scenario,
    TableCost,
    TableWorkload,
    cases,
    clusters,
    costs,
    crowded,
    dispatches,
    engines,
    plans,
    run_scenario,
    scenarios,
    shapes,
    workloads,
)

__all__ = [
    "Cycle",
    "Scenario",
    "TableCost",
    "TableWorkload",
    "cases",
    "clusters",
    "costs",
    "crowded",
    "dispatches",
    "engines",
    "plans",
    "run_scenario",
    "scenarios",
    "shapes",
    "workloads",
]
