"""Published control planes on simulated engines: those that are here. ROLLCAST_CHECKOUTS names a
folder with checkouts called slime, areal, nemo_rl, skyrl, trl, verl and prime_rl; verl, trl, skyrl
and areal may be installed instead."""

import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rollcast.simulator.errors import RollcastError

FOLDER = Path(__file__).parents[2] / "examples" / "control_planes"
NAMES = ("slime", "areal", "nemo_rl", "skyrl", "trl", "verl", "prime_rl")


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module run.py."""
    monkeypatch.syspath_prepend(str(FOLDER))
    import run  # type: ignore[import-not-found]

    yield run
    for name in ("run", "plane", "stand_ins", *(f"on_{plane}" for plane in NAMES)):
        sys.modules.pop(name, None)


def _checkout(name: str, module: str) -> Path | None:
    folder = os.environ.get("ROLLCAST_CHECKOUTS")
    found = Path(folder) / name if folder else None
    if found is not None and found.is_dir():
        return found
    installed = importlib.util.find_spec(name)
    places = (installed.submodule_search_locations if installed else None) or []
    if module and any(
        (Path(at).parent / module.replace(".", "/")).with_suffix(".py").exists() for at in places
    ):
        return None
    why = f"it is not installed with {module}" if module else "no package index has it"
    pytest.skip(f"no checkout of {name} (set ROLLCAST_CHECKOUTS), and {why}")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.filterwarnings("ignore")
def test_a_published_control_plane_keeps_what_it_promises(example: Any, name: str) -> None:
    adapter = example.adapter(name)
    checkout = _checkout(name, adapter.module)
    try:
        tried = example.run(adapter, checkout, example.scenario(), 6, virtual_s=1e5)
    except ImportError as error:
        pytest.skip(f"{name} does not run here: {error}")
    for law in adapter.laws:
        law(tried)
    assert len({entry.get("step") for entry in tried.journal.of("trained")}) == 6


PLANE = """
import threading, queue, time
import torch, ray
from transformers import AutoTokenizer

@ray.remote
class Worker:
    @torch.no_grad()
    def run(self):
        return AutoTokenizer.from_pretrained("x").pad_token_id

LOST = []
BOX = queue.Queue()
"""


def test_code_with_absent_packages_is_imported_anew_each_time(example: Any, tmp_path: Path) -> None:
    (tmp_path / "invented_stack.py").write_text(PLANE)

    def drive(fleet: Any, steps: int) -> Any:
        import invented_stack  # type: ignore[import-not-found]

        invented_stack.LOST.append(1)
        assert invented_stack.Worker().run() is not None
        return len(invented_stack.LOST)

    adapter = example.Adapter(("invented_stack",), ("torch", "ray", "transformers"), drive, "sync")
    for _ in range(2):
        assert example.run(adapter, tmp_path, example.scenario(), 1).value == 1
    assert "invented_stack" not in sys.modules
    assert all(
        "stand-in" not in str(getattr(module, "__file__", ""))
        for module in list(sys.modules.values())
    )


def test_a_checkout_that_is_none(example: Any, tmp_path: Path) -> None:
    with pytest.raises((ImportError, RollcastError)):
        example.run(example.adapter("slime"), tmp_path, example.scenario(), 1)


def test_a_measurement_of_another_name_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from benchmarks import control_planes

    monkeypatch.setattr(sys, "argv", ["control_planes", "nothing"])
    with pytest.raises(SystemExit) as stop:
        control_planes.main()
    assert stop.value.code == 2
    assert "no part is called 'nothing'; choose of long, awaits, hash" in capsys.readouterr().err
