"""What actors are made of: weights on their way, cores, and what is said where Ray is not there."""

import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from actor_fakes import StartEngine, StartRank
from actor_threads import ThreadTransport

from rollcast.engine.actors import fleet, on_ray, updates
from rollcast.engine.actors.fleet import Fleet, Recipe
from rollcast.engine.actors.machine import shares
from rollcast.engine.actors.on_ray import RayTransport
from rollcast.engine.actors.own_folder import OwnFolder
from rollcast.engine.actors.transport import Need, without_place
from rollcast.engine.actors.updates import Updates
from rollcast.engine.actors.weights import ByFiles, ByStore, InFile, Packed, unpack
from rollcast.engine.errors import EngineError


def test_arrays_come_back_as_they_were() -> None:
    array = np.arange(6.0).reshape(2, 3)
    packed = ByStore().pack({"w": array})  # type: ignore[dict-item]
    array[0, 0] = 9.0
    assert isinstance(packed["w"], Packed)
    assert unpack(packed)["w"].tolist() == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64", "uint8", "int64"])
@pytest.mark.parametrize("channel", ["store", "files"])
def test_tensors_come_back_as_they_were(tmp_path: Path, dtype: str, channel: str) -> None:
    torch = pytest.importorskip("torch")
    how = ByStore() if channel == "store" else ByFiles(tmp_path)
    tensor = torch.arange(12).reshape(3, 4).to(getattr(torch, dtype))
    tied = tensor[:2]
    packed: Any = how.pack({"a": tensor, "b": tied, "c": tensor.t()})
    found = unpack(packed)
    for name, own in (("a", tensor), ("b", tied), ("c", tensor.t())):
        assert found[name].dtype == own.dtype
        assert torch.equal(found[name], own)
    kept = tensor.clone()
    tensor += 1
    assert torch.equal(unpack(packed)["a"], kept)


def test_files_that_nobody_needs_are_removed(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    channel = ByFiles(tmp_path)

    def packed(number: float) -> InFile:
        time.sleep(0.01)  # the clock of files is coarse
        return channel.pack({"w": torch.tensor([number])})

    first, _, third = packed(1), packed(2), packed(3)
    (tmp_path / "weights-of-a-killed-trainer.new").touch()
    os.utime(tmp_path / "weights-of-a-killed-trainer.new", (0, 0))
    mapped = unpack(first)
    newer = packed(4)
    channel.keep_only([first, third])
    assert {*tmp_path.iterdir()} == {first.path, third.path, newer.path}
    channel.keep_only([newer])
    assert [*tmp_path.iterdir()] == [newer.path]
    assert mapped["w"].tolist() == [1.0]  # by who has it


@pytest.mark.parametrize(
    ("cores", "actors", "expected"),
    [
        ((0, 1), 2, [(0,), (1,)]),
        ((0, 1), 3, [(), (), ()]),
        ((2, 3, 4, 5, 6), 2, [(2, 3), (4, 5)]),
        ((7,), 1, [(7,)]),
    ],
)
def test_no_two_actors_share_a_core(
    cores: tuple[int, ...], actors: int, expected: list[tuple[int, ...]]
) -> None:
    assert shares(cores, actors) == expected


def test_another_version_on_a_node_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet, "versions", lambda: (("rollcast", "9.9"),))
    transport = ThreadTransport()
    replicas = Fleet(transport, [Recipe(StartEngine())])
    transport.wait(replicas.polls, 10.0)
    with pytest.raises(EngineError, match=r"other versions than this process: .*not rollcast 9"):
        list(replicas.receive(replicas.polls))


def test_a_rank_with_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = Updates(ThreadTransport(), [Recipe(StartRank())] * 2)
    monkeypatch.setattr(updates, "versions", lambda: (("rollcast", "9.9"),))
    with pytest.raises(EngineError, match="the trainer has other versions"):
        trainer.require_started()


def test_without_ray_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(EngineError, match=r"Ray is not installed.*rollcast\[ray\]"):
        RayTransport()


@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:1", "127.0.0.1:999999"])
def test_an_address_where_nothing_answers(address: str) -> None:
    pytest.importorskip("ray", reason="Ray is not installed (rollcast[ray])")
    with pytest.raises(EngineError, match=f"no Ray cluster answers at {address}: ") as caught:
        RayTransport(address)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("address", ["nonsense", "", "host:", ":6379", "host:port"])
def test_what_is_no_address(address: str) -> None:
    with pytest.raises(EngineError, match="give host:port, auto or local"):
        RayTransport(address)


def test_a_ray_of_our_own_asks_for_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set before Ray is imported, and left as it is where somebody has set it."""
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    on_ray._require_token()
    token = os.environ["RAY_AUTH_TOKEN"]
    assert (os.environ["RAY_AUTH_MODE"], len(token)) == ("token", 64)
    on_ray._require_token()
    assert os.environ["RAY_AUTH_TOKEN"] == token


def test_what_a_killed_driver_left_is_removed(tmp_path: Path) -> None:
    (tmp_path / "ray-of-others").mkdir()
    ours = OwnFolder(tmp_path, "ray-")
    again = OwnFolder(tmp_path, "ray-")
    assert ours.path.is_dir()
    again.close()
    ours._lock.close()  # as a process does that ends
    last = OwnFolder(tmp_path, "ray-")
    assert {path.name for path in tmp_path.iterdir()} == {"ray-of-others", last.path.name}
    last.close()


def test_ray_that_does_not_start(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ray = pytest.importorskip("ray", reason="Ray is not installed (rollcast[ray])")

    def refuse(**options: Any) -> None:
        raise RuntimeError("no room\nand much more about it")

    monkeypatch.setattr(ray, "init", refuse)
    monkeypatch.setattr(on_ray, "TEMPORARY", str(tmp_path))
    with pytest.raises(EngineError, match="Ray is not available on this machine: Run") as caught:
        RayTransport()
    assert "\n" not in str(caught.value)
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    ("gpus", "machines", "lost"),
    [
        ([1, 1, 1], [(4, 8)], None),
        ([2, 1, 2, 1], [(3, 8), (3, 8)], None),
        ([4], [(2, 8), (2, 8)], 4),  # enough in all, but a replica stays on one machine
        ([2, 2, 1], [(2, 8), (2, 8)], 1),
        ([0, 0], [(0, 1)], 0),  # the CPUs
    ],
)
def test_a_replica_that_no_machine_has_room_for(
    gpus: list[int], machines: list[tuple[float, float]], lost: int | None
) -> None:
    found = without_place([Need(1, count) for count in gpus], machines)
    assert (None if found is None else found.gpus) == lost
