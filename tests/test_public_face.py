"""The package ``rollcast``: light, typed, and the same objects as beside it."""

import os
import runpy
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import rollcast
from tests.scenarios import TINY

ROOT = Path(__file__).parent.parent
SCRIPT = ROOT / "examples" / "from_python.py"
APRIL = ROOT / "examples" / "april.yaml"
HEAVY = {"pandas", "matplotlib", "scipy", "torch", "vllm"}


def run(code: str, *, path: Path = ROOT, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Another Python's word, ours on its path."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(path), str(ROOT)])}
    return subprocess.run(
        [sys.executable, "-c", code], env=environment, cwd=cwd, capture_output=True, text=True
    )


def test_every_name_is_the_object_that_its_package_has() -> None:
    assert {
        "load",
        "simulate",
        "compare",
        "plan",
        "Policy",
        "chain",
        "Scenario",
        "Result",
        "StepPlan",
        "ScenarioError",
        "RunError",
    } <= set(rollcast.__all__)
    assert dir(rollcast) == rollcast.__all__
    for name, place in rollcast._PLACES.items():
        assert getattr(rollcast, name) is getattr(import_module(place), name)
    with pytest.raises(AttributeError, match="no attribute 'simulte'"):
        _ = rollcast.simulte


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda s: rollcast.load(None), "path: must be the path of a scenario file, got None"),
        (lambda s: rollcast.load(APRIL, {"steps": 2}), "settings: must be text such as 'steps=20'"),
        (lambda s: rollcast.simulate("a.yaml"), "scenario: must be a scenario, as load returns it"),
        (lambda s: rollcast.simulate(s, on_step=3), "on_step: must be a function of a step's rec"),
        (lambda s: rollcast.compare(s), "scenarios: must be a list, each a scenario, as load"),
        (lambda s: rollcast.compare(["sync", "april"]), "scenarios: must be a list, each a scen"),
        (lambda s: rollcast.plan(3), "scenario: must be a scenario, as load returns it, or its"),
        (lambda s: rollcast.plan(s, "hours=3"), "plan: must be a mapping of keys to values"),
        (lambda s: s.with_policy(None), "policy: must be a policy, or text such as 'april+pods"),
        (lambda s: rollcast.chain("april"), "policy: must be a policy, such as APRIL(); parse_"),
        (lambda s: rollcast.spell("april"), "policy: must be a policy, such as APRIL(), got 'ap"),
    ],
)
def test_an_argument_of_another_type_is_named(call: Callable[[Any], Any], said: str) -> None:
    with pytest.raises(rollcast.ScenarioError) as caught:
        call(rollcast.load(APRIL))
    assert str(caught.value).startswith(said)


def test_its_import_brings_nothing_and_its_names_nothing_heavy() -> None:
    code = "import sys; before = set(sys.modules); import rollcast; {}; print(*sys.modules)"
    alone = run(code.format("0")).stdout.split()
    assert not {"numpy", "yaml", "rollcast.simulator"} & set(alone)
    named = run(code.format("[getattr(rollcast, name) for name in rollcast.__all__]"))
    assert "rollcast.simulator.planner.planner" in named.stdout.split()
    assert not HEAVY & set(named.stdout.split()), named.stderr


@pytest.mark.usefixtures("quick_intervals")
def test_the_example_runs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With an eighth of its batch."""
    load, less = rollcast.load, "workload.batch_groups=4"
    monkeypatch.setattr(rollcast, "load", lambda *given: load(*given, less))
    runpy.run_path(str(SCRIPT), run_name="__main__")
    said = capsys.readouterr().out
    for words in ("sync: ", "april: ", "Hurry(over_sampling=1.5): ", "+prefix_reuse: "):
        assert words in said
    assert "colocated" in said[said.index("Run ") :]


def test_a_script_is_typed(tmp_path: Path) -> None:
    """The example passes ``mypy --strict``; what is used wrongly does not."""
    shutil.copy(SCRIPT, tmp_path / "good.py")
    wrong = (
        "from rollcast import load, simulate, compare",
        "simulate('april.yaml')",
        "load('april.yaml', seed='0')",
        "compare([load('april.yaml')]).summary",
    )
    (tmp_path / "bad.py").write_text("\n".join(wrong), encoding="utf-8")
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "mypy",
            "--strict",
            "--config-file=",
            "good.py",
            "bad.py",
            "--follow-imports=silent",
            f"--cache-dir={ROOT / '.mypy_cache' / 'script'}",
        ],
        env={**os.environ, "MYPYPATH": str(ROOT)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    said = [line for line in done.stdout.splitlines() if ": error:" in line]
    assert [line.split(":")[:2] for line in said] == [["bad.py", str(n)] for n in (2, 3, 4)], (
        done.stdout + done.stderr
    )


def test_an_old_name_imported_first_in_a_checkout_is_no_second_copy() -> None:
    done = run("from simulator.plan import StepPlan; import rollcast; print(StepPlan.__module__)")
    assert done.stdout.strip() == "rollcast.simulator.core.plan", done.stderr
    assert "DeprecationWarning" not in done.stderr  # shown where it is raised in __main__ alone


def test_costs_in_coefficients_do_not_wait_for_the_roofline() -> None:
    done = run(
        "import sys; from rollcast.simulator.scenario.file import parse_scenario; "
        "from rollcast.simulator.scenario.scenario import build_scenario; "
        f"build_scenario(parse_scenario({TINY!r})); "
        "print(*(name for name in sys.modules if name.startswith('rollcast.simulator.costs.')))"
    )
    read = done.stdout.split()
    assert "rollcast.simulator.costs.linear" in read, done.stderr
    for other in ("roofline", "models", "hardware", "fitted", "tables", "trainer"):
        assert f"rollcast.simulator.costs.{other}" not in read


def test_a_simulation_imports_only_what_it_uses(tmp_path: Path) -> None:
    """One turn, costs in coefficients, no files, no intervals: none of what serves these."""
    (tmp_path / "tiny.yaml").write_text(TINY, encoding="utf-8")
    done = run(
        "import sys; from rollcast.simulator.cli.app import main\n"
        "try: main(['simulate', 'tiny.yaml', '--draws', '0'])\n"
        "except SystemExit: print(*sys.modules)",
        cwd=tmp_path,
    )
    imported = done.stdout.split()
    assert "rollcast.simulator.results.metrics" in imported, done.stderr
    assert not (HEAVY - {"scipy"}) & set(imported)
    for room, unused in {
        "cluster": ("sessions", "session_machine"),
        "costs": ("roofline", "trainer", "fitted", "tables", "presets"),
        "results": ("schema", "write", "read", "folder", "perfetto", "timeline"),
        "studies": ("uncertainty", "redrawn", "short_runs", "tornado", "compare"),
        "workload": ("turns", "environment", "traces", "measured"),
    }.items():
        assert not {f"rollcast.simulator.{room}.{name}" for name in unused} & set(imported)
    for room in ("planner", "report", "explore"):
        assert f"rollcast.simulator.{room}" not in imported
