"""Weights in files between processes of one machine: no whole copy of them crosses, whoever is
killed, and none is left behind."""

from pathlib import Path
from random import Random
from types import SimpleNamespace

import pytest

pytest.importorskip("torch")

from running_actors import STEPS, drive, kill_each, made, make

from rollcast.engine import shared_memory
from rollcast.engine.actors.weights import ByFiles, ByStore
from rollcast.engine.start import weights_home

BALLAST = 1 << 17  # numbers of eight bytes: a megabyte
MOST = 100_000


@pytest.mark.parametrize("policy", ["sync", "fully_async(max_staleness=2, sync_every=2)"])
@pytest.mark.parametrize("seed", [None, 1, 2])
def test_the_largest_object_is_no_copy_of_the_weights(
    tmp_path: Path, policy: str, seed: int | None
) -> None:
    home = make(2, tensors=True, channel=ByFiles(tmp_path), ballast=BALLAST)
    if seed is not None:
        kill_each(home, Random(seed))
    most = [0]
    home.world.after_news = lambda: most.append(len([*tmp_path.iterdir()]))
    result, _ = drive(home, policy)
    assert len(result.steps) == STEPS
    assert result.ledger.balance == 0
    assert bool(home.world.log.faults) == (seed is not None)
    assert set(home.world.log.sync_differences) <= {0.0}
    assert home.transport.largest < MOST
    assert max(most) <= 5  # what replicas have, what comes, and what lost trainers left
    if policy == "sync":
        assert made(result) == made(drive(make(2, tensors=True), policy)[0])


def test_the_store_would_have_taken_a_copy() -> None:
    home = make(2, tensors=True, channel=ByStore(), ballast=BALLAST)
    drive(home, "sync")
    assert home.transport.largest > 8 * BALLAST


def test_files_are_in_memory_where_they_have_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "model.safetensors").write_bytes(b"0" * 1000)
    monkeypatch.setattr(shared_memory, "SHARED", tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(model))
    for free, parent in ((4000, tmp_path), (3000, model)):
        usage = SimpleNamespace(free=free)
        monkeypatch.setattr("shutil.disk_usage", lambda path, usage=usage: usage)
        home = weights_home(model)
        assert home.path.parent == parent
        home.close()
        assert not home.path.exists()
