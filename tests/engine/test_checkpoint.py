"""A checkpoint that was damaged, or made to do harm: one sentence, and nothing is executed."""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from rollcast.engine import checkpoint
from rollcast.engine.actors.updates import Snapshot
from rollcast.engine.checkpoint_read import damaged, load
from rollcast.engine.edges import TrainerSave
from rollcast.engine.log import EngineLog
from rollcast.engine.responses import Tokens
from rollcast.engine.saving import Saver, pack, read, unpack
from rollcast.engine.trainer.shard_files import require_files, saved_file
from rollcast.engine.world_parts import WorldState
from rollcast.simulator.core.plan import Batch, StepPlan
from rollcast.simulator.errors import RunError, ScenarioError
from rollcast.simulator.loop.loop import Loop
from rollcast.simulator.loop.recorded import Entry, RecordedWorld
from rollcast.simulator.policies import parse_policy
from rollcast.simulator.scenario.file import parse_scenario
from rollcast.simulator.studies.simulate import from_raw
from tests.laws import examples

SCENARIO = """
engine: {kv_tokens: 65536}
workload: {batch_groups: 3, group_size: 4, prompt_tokens: 5, max_new_tokens: 50,
           lengths: {family: lognormal, median_tokens: 9, between_sd: 0.6, within_sd: 0.6}}
cost: {linear: {iteration_s: 1.0e-3, per_rollout_s: 0, per_context_token_s: 0,
                per_prefill_token_s: 0, train_per_token_s: 1.0e-5, train_fixed_s: 0, sync_s: 0}}
"""
W = torch.arange(6.0).reshape(2, 3)
POLICY = parse_policy("sagc(candidates=[2, 4], first=4)+april(over_sampling=2)", seed=1)
KNOWN = {"scenario": {"seed": 1}, "prompts": None}
TOKENS = {(3, 0): Tokens(1, (5, 6), (-0.1, -2.5), (0, 1)), (4, 1): Tokens()}
SHARD = "trainer-4/shard-00001-model-00001-of-00001.safetensors"
FILES = ["checkpoint-4.json", "journal.jsonl", "state-4.json", "tokens-4.safetensors", SHARD]

fuzzing = settings(
    max_examples=examples(60),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


class Trainer:
    """What a saver asks of `engine.actors.updates.Updates`; writes at once."""

    place: Any = None
    between = True
    save_in_use = None
    snapshot: Snapshot | None = None

    def __init__(self) -> None:
        self.version = 0

    def take_snapshot(self, folder: Path) -> Snapshot:
        folder.mkdir(parents=True)
        path = folder / Path(SHARD).name
        save_file({"model/w": W}, path)
        save = TrainerSave(folder, {path.name: saved_file(path)}, {"shuffle": [3, [1], None]})
        self.snapshot = Snapshot(self.version, folder, 0, save)
        return self.snapshot

    def finish_snapshot(self) -> None:
        pass


class Saveable:
    """What a saver asks of a world."""

    after_news: Any = None

    def __init__(self) -> None:
        self.log, self.updates = EngineLog(), Trainer()

    @property
    def trained(self) -> int:
        return self.updates.version

    def state(self) -> WorldState:
        version = self.updates.version
        return WorldState(1.5, version, version, {3: 7}, TOKENS)


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The results' folder of a run of three steps, saved after each."""
    out = tmp_path_factory.mktemp("checkpoint") / "out"
    simulated = from_raw(parse_scenario(SCENARIO)).world()
    entries: list[Entry] = []
    record = RecordedWorld(entries, simulated, simulated.shape, "engine")
    loop, world = Loop(record, POLICY, StepPlan(Batch(3, 4))), Saveable()
    saver = Saver(checkpoint.Writer(out), KNOWN, record, world)  # type: ignore[arg-type]

    def save(loop: Loop) -> None:
        world.log.sync_check_s.append(0.25)
        world.updates.version = len(loop.result.steps)
        saver.save(world.updates.version, 9.0)

    save(loop)
    loop.run(3, after_step=save)
    names = {str(path.relative_to(checkpoint.place(out))) for path in files(out)}
    assert names == {*FILES}
    return out


@pytest.fixture
def out(good: Path, tmp_path: Path) -> Path:
    """A copy that may be broken."""
    shutil.copytree(checkpoint.place(good), checkpoint.place(tmp_path / "out"))
    return tmp_path / "out"


def files(out: Path) -> list[Path]:
    return [path for path in checkpoint.place(out).rglob("*") if path.is_file()]


def resume(out: Path) -> Any:
    return read(out, KNOWN["scenario"])  # type: ignore[arg-type]


def refused(out: Path) -> str:
    """The one sentence."""
    with pytest.raises(ScenarioError) as caught:
        require_trainer(resume(out).saved)
    assert caught.value.field == "--resume"
    said = str(caught.value)
    assert "\n" not in said
    return said


def require_trainer(saved: Any) -> None:
    """As the ranks do before they read."""
    save = saved.trainer
    try:
        require_files(save.folder, save.files)
    except ValueError as error:
        raise damaged(saved.writer.out, error) from None


def outcome(out: Path) -> str | None:
    """The one sentence; None where it can be gone on from."""
    try:
        resumed = resume(out)
        require_trainer(resumed.saved)
        assert resumed.done == 3
    except ScenarioError as error:
        said = str(error)
    else:
        return None
    assert "\n" not in said
    return said


def test_it_comes_back(good: Path) -> None:
    resumed = resume(good)
    assert resumed.done == 3
    assert resumed.world.tokens == TOKENS
    world = resumed.world
    assert (world.clock_s, world.version, world.updates, world.asked) == (1.5, 3, 3, {3: 7})
    assert resumed.log.sync_check_s == [0.25] * 4
    assert sum(len(entry.segments) for entry in resumed.entries) > 30
    assert resumed.wall_s == 9.0
    require_trainer(resumed.saved)
    assert resumed.world.trainer.plain == {"shuffle": [3, [1], None]}


def half_journal(patch: pytest.MonkeyPatch) -> None:
    append = checkpoint.Writer._append

    def dying(self: checkpoint.Writer, path: Path, added: Any) -> Any:
        before, done = self.journal.bytes, append(self, path, added)
        os.truncate(path, before + (done.bytes - before) // 2)
        raise Died

    patch.setattr(checkpoint.Writer, "_append", dying)


def half_tensors(patch: pytest.MonkeyPatch) -> None:
    write = checkpoint._write_arrays

    def dying(path: Path, arrays: Any) -> Any:
        os.truncate(path, write(path, arrays).bytes // 2)
        raise Died

    patch.setattr(checkpoint, "_write_arrays", dying)


def before_manifest(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Path, "replace", die)


def after_manifest(patch: pytest.MonkeyPatch) -> None:
    """Before the files of the save before are gone."""
    patch.setattr(checkpoint, "sync_folder", die)


def die(*arguments: Any) -> Any:
    raise Died


class Died(BaseException):
    """As if the process had been killed: nothing cleans up."""


@pytest.mark.parametrize(
    ("arm", "number"),
    [(half_journal, 4), (half_tensors, 4), (before_manifest, 4), (after_manifest, 5)],
)
def test_a_save_that_is_killed_is_whole_or_the_one_before_stays(
    out: Path, arm: Callable[[pytest.MonkeyPatch], None], number: int
) -> None:
    saved = resume(out).saved
    with pytest.MonkeyPatch.context() as patch:
        arm(patch)
        with pytest.raises(Died):
            save_again(saved, {"events": []})
    again = loaded(out)
    assert (again.number, len(again.journal)) == (number, number)
    require_trainer(again)
    save_again(again, {"events": "more"})
    assert loaded(out).journal[-1] == {"events": "more"}
    assert len({path.parent for path in files(out) if path.parent.name.startswith("trainer")}) == 1


def loaded(out: Path, keep: int = 1) -> Any:
    return load(out, KNOWN["scenario"], keep)  # type: ignore[arg-type]


def save_again(saved: Any, added: Any) -> None:
    """The same once more, with another line in the journal."""
    writer, trainer = saved.writer, Trainer()
    snapshot = trainer.take_snapshot(writer.place())
    draft = writer.begin(saved.state, added, saved.tokens(), number=writer.number)
    writer.finish(draft, snapshot.save)


@pytest.mark.parametrize(
    "lost", ["checkpoint-{}.json", "state-{}.json", SHARD.replace("4", "{}", 1)]
)
def test_where_the_newest_is_damaged_the_one_before_is_gone_on_from(out: Path, lost: str) -> None:
    """As far as that is kept; and it is said."""
    saved = loaded(out, keep=2)
    save_again(saved, {"events": "more"})
    assert loaded(out, keep=2).writer.whole == [4, 5]
    (checkpoint.place(out) / lost.format(5)).unlink()
    again = loaded(out, keep=2)
    assert (again.number, again.journal) == (4, saved.journal)
    if "checkpoint" not in lost:  # else there is no telling that there was one
        assert "save 5 is damaged (" in again.older
        assert "missing" in again.older or "No such file" in again.older
    save_again(again, {"events": "other"})
    assert loaded(out, keep=2).journal[-1] == {"events": "other"}
    assert loaded(out, keep=2).writer.number == 6


def test_a_shard_of_another_run_is_named(out: Path, tmp_path: Path) -> None:
    path = checkpoint.place(out) / SHARD
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert "shard-00001-model-00001-of-00001.safetensors does not match" in refused(out)
    path.write_bytes(content + b"1")
    assert "a shard of the trainer, is not as long as it was" in refused(out)
    path.unlink()
    assert f"{SHARD}, a shard of the trainer, is missing" in refused(out)


def test_ranks_that_write_elsewhere_are_told(out: Path) -> None:
    saved = loaded(out)
    draft = saved.writer.begin(saved.state, {}, saved.tokens())
    away = TrainerSave(out / "trainer-9", saved.trainer.files, {})
    with pytest.raises(RunError, match="a file system that all machines see"):
        saved.writer.finish(draft, away)
    assert loaded(out).number == 4


def test_a_finished_run_is_opened_again(out: Path) -> None:
    """And stays as it is, whatever becomes of the one that goes on."""
    folder = out / "results"
    folder.mkdir(parents=True)
    (checkpoint.place(out) / "model").mkdir()
    (checkpoint.place(out) / "model" / "config.json").write_text("{}")
    checkpoint.keep(out, folder)
    (folder / checkpoint.KEPT).rename(out / checkpoint.KEPT)
    assert (folder / "model" / "config.json").is_file()
    kept = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    checkpoint.discard(out)
    assert checkpoint.finished(out)
    assert not checkpoint.exists(out)
    checkpoint.reopen(out)
    save_again(loaded(out), {"events": "more"})
    assert loaded(out).number == 5
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == kept


def test_each_save_writes_what_is_new_alone(good: Path) -> None:
    lines = (checkpoint.place(good) / "journal.jsonl").read_text().splitlines()
    events = [json.loads(line)["events"] for line in lines]
    updates = [[e["asked"][0] for e in line if e["verb"] == "train"] for line in events]
    assert updates == [[], [0], [1], [2]]


def test_what_a_crash_left_behind_is_cut_off_and_written_over(out: Path) -> None:
    journal = checkpoint.place(out) / "journal.jsonl"
    with journal.open("ab") as file:
        file.write(b'{"half a li')
    (checkpoint.place(out) / "trainer-5").mkdir()
    (checkpoint.place(out) / "trainer-5" / "shard").write_bytes(b"half of the weights")
    saved = resume(out).saved
    save_again(saved, {"events": "none"})
    lines = journal.read_bytes().splitlines()
    assert json.loads(lines[-1])["events"] == "none"
    assert len(lines) == 5
    assert loaded(out).number == 6
    assert not (checkpoint.place(out) / "trainer-5").exists()


@fuzzing
@given(data=st.data())
def test_damaged_bytes(good: Path, tmp_path: Path, data: st.DataObject) -> None:
    out = tmp_path / "out"
    shutil.rmtree(checkpoint.place(out), ignore_errors=True)
    shutil.copytree(checkpoint.place(good), checkpoint.place(out))
    path = checkpoint.place(out) / data.draw(st.sampled_from(FILES))
    content = path.read_bytes()
    at = data.draw(st.integers(0, len(content) - 1))
    kind = data.draw(st.sampled_from(["flip", "cut", "insert", "random", "gone"]))
    if kind == "flip":
        content = (
            content[:at] + bytes([content[at] ^ data.draw(st.integers(1, 255))]) + content[at + 1 :]
        )
    elif kind == "cut":
        content = content[:at]
    elif kind == "insert":
        content = content[:at] + data.draw(st.binary(min_size=1, max_size=9)) + content[at:]
    elif kind == "random":
        content = data.draw(st.binary(max_size=200))
    path.write_bytes(content)
    if kind == "gone":
        path.unlink()
    if kind == "insert":  # the same bytes again, or past the journal's end, change nothing
        said = outcome(out)
        assert said is None or "is damaged: " in said
    else:
        assert "there is no unfinished" in (said := refused(out)) or "is damaged: " in said


def seal(out: Path) -> None:
    """Makes the manifest fit what the files are now, as whoever plants them would."""
    folder = checkpoint.place(out)
    manifest = json.loads((folder / "checkpoint-4.json").read_text())
    del manifest["sha256"]
    for part, name in zip(("journal", "state", "tokens"), FILES[1:4], strict=True):
        content = (folder / name).read_bytes()
        described = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        manifest["parts"][part] = described
    digest = hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
    (folder / "checkpoint-4.json").write_text(json.dumps({**manifest, "sha256": digest}))


def places(content: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to every value of a JSON document."""
    if at:
        yield at
    items = content.items() if isinstance(content, dict) else enumerate(content)
    for key, item in items:
        if isinstance(item, dict | list):
            yield from places(item, (*at, key))
        else:
            yield (*at, key)


POISON = [
    None,
    True,
    -1,
    10**30,
    1e308,
    1.5,
    "x",
    [],
    {},
    [[1]],
    {"is": "record", "of": "Popen"},
    {"is": "tuple", "of": [1]},
]


@fuzzing
@given(data=st.data())
def test_planted_values_are_refused_or_of_the_right_type(
    good: Path, tmp_path: Path, data: st.DataObject
) -> None:
    out = tmp_path / "out"
    shutil.rmtree(checkpoint.place(out), ignore_errors=True)
    shutil.copytree(checkpoint.place(good), checkpoint.place(out))
    path = checkpoint.place(out) / data.draw(st.sampled_from(["journal.jsonl", "state-4.json"]))
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    line = data.draw(st.sampled_from(lines))
    *way, last = data.draw(st.sampled_from([*places(line)]))
    inner = line
    for key in way:
        inner = inner[key]
    if data.draw(st.booleans()):
        inner[last] = data.draw(st.sampled_from(POISON))
    else:
        del inner[last]
    path.write_text("\n".join(map(json.dumps, lines)))
    seal(out)
    said = outcome(out)
    assert said is None or said.startswith("--resume: ")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("state-4.json", b"[" * 200_000),
        ("state-4.json", b'{"scenario": {"seed": 1}, "world": ' + b'{"a":' * 100_000 + b"1" * 9999),
        ("journal.jsonl", b"[]\n"),
        ("journal.jsonl", b'{"run": {}}\n'),
        ("journal.jsonl", b"\xff\xfe\n"),
        ("tokens-4.safetensors", b"\xff" * 64),
        ("tokens-4.safetensors", b""),
    ],
)
def test_planted_files(out: Path, name: str, content: bytes) -> None:
    (checkpoint.place(out) / name).write_bytes(content)
    seal(out)
    assert "is damaged: " in refused(out)


@pytest.mark.parametrize(
    "change",
    [
        lambda manifest: manifest.update(number="../../x"),
        lambda manifest: manifest.update(number=10**30),
        lambda manifest: manifest.update(parts=[]),
        lambda manifest: manifest["parts"].pop("state"),
        lambda manifest: manifest["parts"]["state"].update(bytes=10**30),
        lambda manifest: manifest["parts"]["state"].update(bytes=-1),
        lambda manifest: manifest["parts"]["journal"].update(bytes=True),
        lambda manifest: manifest.update(schema="rollcast-checkpoint/99"),
        lambda manifest: manifest.pop("trainer"),
        lambda manifest: manifest["trainer"].update(folder="../trainer-4"),
        lambda manifest: manifest["trainer"].update(
            files={"../../x.y": {"bytes": 1, "sha256": ""}}
        ),
        lambda manifest: manifest["trainer"].update(plain=3),
    ],
)
def test_planted_manifests(out: Path, change: Callable[[Any], None]) -> None:
    path = checkpoint.place(out) / "checkpoint-4.json"
    manifest = json.loads(path.read_text())
    del manifest["sha256"]
    change(manifest)
    digest = hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
    path.write_text(json.dumps({**manifest, "sha256": digest}))
    assert "is damaged: " in refused(out)


def test_a_save_of_an_earlier_version_is_named(out: Path) -> None:
    for path in checkpoint.place(out).glob("checkpoint-*.json"):
        path.rename(path.with_name("checkpoint.json"))
    assert "saved by an earlier version, in a form that is not read" in refused(out)


def test_planted_arrays() -> None:
    whole = pack(TOKENS)
    assert unpack(whole) == TOKENS
    assert unpack(pack({})) == {}
    for change in (
        {"ids": whole["ids"][:1]},
        {"ids": whole["ids"].astype("float64")},
        {"keys": whole["keys"][:, :3]},
        {"keys": -whole["keys"]},
        {"keys": whole["keys"].ravel()},
        {"log_probs": whole["log_probs"].reshape(-1, 1)},
    ):
        with pytest.raises(ValueError, match="the rollouts'"):
            unpack({**whole, **change})
    with pytest.raises(ValueError, match="versions are missing"):
        unpack({name: array for name, array in whole.items() if name != "versions"})
