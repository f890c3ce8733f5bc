"""Syntax that several stacks share."""

import io
import math
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollcast.calibration.logs.console_lines import pieces
from rollcast.calibration.logs.formats import configs, events
from rollcast.simulator.stacks.syntax import json_text
from rollcast.simulator.stacks.syntax.python_text import flat, nested, opens
from rollcast.simulator.stacks.syntax.scalars import number, scalar


def _sentence(error: Exception) -> None:
    assert str(error)
    assert "\n" not in str(error)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1.0),
        ("-2.5", -2.5),
        ("1e-05", 1e-5),
        (".5", 0.5),
        ("3.", 3.0),
        ("np.float64(2.0)", 2.0),
        ("np.int32(2)", 2.0),
        ("numpy.float32(1e3)", 1000.0),
        ("tensor(0.5)", 0.5),
        ("tensor(0.5, device='cuda:0')", 0.5),
        ("torch.tensor(7)", 7.0),
        ("inf", math.inf),
        ("-inf", -math.inf),
        ("", None),
        ("x", None),
        ("1 2", None),
        ("34,19", None),
        ("np.float64()", None),
        ("True", None),
        ("[1.0]", None),
        ("1.2.3", None),
        ("1" * 1000, None),
    ],
)
def test_numbers_as_consoles_print_them(text: str, value: float | None) -> None:
    assert number(text) == value


def test_not_a_number_is_a_number() -> None:
    assert math.isnan(number("nan") or 0)
    assert math.isnan(number("np.float64(nan)") or 0)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ([1.5], 1.5),
        ([[2]], 2.0),
        (3, 3.0),
        (True, None),
        ([1, 2], None),
        ("1", None),
        (None, None),
        (10**400, math.inf),
        (-(10**400), -math.inf),
    ],
)
def test_scalars_of_parsed_files(value: object, expected: float | None) -> None:
    assert scalar(value) == expected


@pytest.mark.parametrize(
    ("raw", "actor", "text"),
    [
        (b"\x1b[36m(TaskRunner pid=12)\x1b[0m step:1 - a:2", "TaskRunner pid=12", "step:1 - a:2"),
        (b"(TaskRunner pid=12, ip=10.0.0.1) step:1", "TaskRunner pid=12, ip=10.0.0.1", "step:1"),
        (b"[36m(TaskRunner pid=12)[0m step:1", "TaskRunner pid=12", "step:1"),
        (
            b"(W pid=1) loaded [repeated 3x across cluster] (Ray deduplicates logs by default. Set "
            b"RAY_DEDUP_LOGS=0 to disable log deduplication)",
            "W pid=1",
            "loaded",
        ),
        (b"(W pid=1) loaded [repeated 12x across cluster]", "W pid=1", "loaded"),
        (b"plain [36 words] (no pid)", "", "plain [36 words] (no pid)"),
    ],
)
def test_what_launchers_put_around_a_line(raw: bytes, actor: str, text: str) -> None:
    assert pieces(raw) == [(actor, text)]


def test_a_progress_bar_shares_the_line() -> None:
    assert pieces(b" 10%|#  | 1/10\rstep:1 - a:2")[1].text == "step:1 - a:2"


def test_printed_mappings() -> None:
    text = (
        "{'a/b': 1, \"c\": np.float64(2.5), 'd': tensor(3., device='cuda:0'), 'e': '4.5000', "
        "'f': 'words', 'g': None, 'h': nan}"
    )
    values, whole = flat(text)
    assert whole
    assert math.isnan(values.pop("h"))
    assert values == {"a/b": 1.0, "c": 2.5, "d": 3.0, "e": 4.5}
    values, whole = flat(text[:40])
    assert not whole
    assert values == {"a/b": 1.0, "c": 2.5}


def test_printed_configurations() -> None:
    lines = ["{'a': {'b': 1,", "       'c': [1, 2]},", " 'd': PosixPath('/x'), 'e': f(), **g}"]
    assert nested(lines) == [("a.b", 1, 0), ("a.c", [1, 2], 1), ("d", "/x", 2)]
    assert nested(["{'a': "]) == []
    assert nested(["__import__('os').system('true')"]) == []
    assert nested(["{" * 100_000]) == []


def test_brackets_within_quotes_do_not_count() -> None:
    assert opens("{'a': '}}', \"b\": [") == 2


# Configurations


def test_yaml_with_its_lines() -> None:
    found = {g.key: (g.value, g.line) for g in configs.from_yaml("a:\n  b: 1\n  c: [x, y]\nd: t\n")}
    assert found == {"a.b": (1, 2), "a.c": (["x", "y"], 3), "d": ("t", 4)}


def test_overrides_of_hydra() -> None:
    text = "- trainer.nnodes=2\n- +ray.num_gpus=1\n- ++a.b='x y'\n- data.lr=1e-6\n"
    found = {g.key: (g.value, g.line) for g in configs.from_yaml(text)}
    assert found == {
        "trainer.nnodes": (2, 1),
        "ray.num_gpus": (1, 2),
        "a.b": ("x y", 3),
        "data.lr": (1e-6, 4),
    }


def test_toml_with_its_lines() -> None:
    text = 'max_steps = 5\n[model]\nname = "x"\n[a.b]\nc = {d = 1}\n'
    found = {g.key: (g.value, g.line) for g in configs.from_toml(text)}
    assert found == {"max_steps": (5, 1), "model.name": ("x", 3), "a.b.c.d": (1, 5)}


def test_command_lines() -> None:
    line = "++ python3 -m verl.trainer.main_ppo a.b=1 +c.d='x y' --flag --n-samples 8 --e=2 --last"
    found = {g.key: g.value for g in configs.from_command(line, 3)}
    assert found == {"a.b": 1, "c.d": "x y", "flag": True, "n-samples": 8, "e": 2, "last": True}
    assert configs.from_command("a sentence = of words", 1) == []
    argument = configs.argument("  n_samples_per_prompt ............................ 8", 4)
    assert argument == configs.Given("n_samples_per_prompt", 8, 4)


def test_hostile_configurations_are_bounded() -> None:
    bomb = "a: &a [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
        f"{chr(98 + i)}: &{chr(98 + i)} [{','.join(['*' + chr(97 + i)] * 10)}]\n" for i in range(12)
    )
    for endless in (bomb, "a: &a {b: *a}"):
        with pytest.raises(configs.NotConfigError, match="more than"):
            configs.from_yaml(endless)
    for text in ("a: [", "!!python/object/apply:os.system [true]\n", "\t- x"):
        try:
            found = configs.from_yaml(text)
        except configs.NotConfigError:
            continue
        assert all(isinstance(g.value, str | list) for g in found)


@given(st.text())
def test_configurations_of_any_text(text: str) -> None:
    for read in (configs.from_yaml, configs.from_toml, configs.from_json):
        try:
            found = read(text)
        except configs.NotConfigError:
            continue
        assert all(given.key for given in found)
    configs.from_command(text, 1)
    configs.argument(text, 1)
    configs.word(text)
    flat(text)
    nested([text])
    pieces(text.encode("utf-8", "replace"))


@given(st.binary())
def test_json_of_any_bytes(content: bytes) -> None:
    try:
        json_text.parse(content)
    except json_text.NotJsonError as error:
        _sentence(error)


def test_json_beyond_reason() -> None:
    with pytest.raises(json_text.NotJsonError):
        json_text.parse(b"[" * 200_000)
    with pytest.raises(json_text.NotJsonError, match="digits"):
        json_text.parse(b"1" * 100_000)


# TensorBoard


def _record(data: bytes) -> bytes:
    """A TFRecord; the check of the data is not read."""
    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", events._masked(length)) + data + b"\0\0\0\0"


def test_the_check_of_a_length_is_that_of_the_standard() -> None:
    # RFC 3720, B.4: 32 bytes of zeros have the CRC-32C 0x8A9136AA
    rotated = 0x8A9136AA >> 15 | 0x8A9136AA << 17
    assert events._masked(bytes(32)) == (rotated + 0xA282EAD8) & 0xFFFFFFFF


def test_files_of_tensorboards_own_writer(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX", reason="TensorBoard's writer is not installed")
    from tensorboardX import SummaryWriter

    with SummaryWriter(str(tmp_path)) as writer:
        for step in range(300):
            writer.add_scalar("a/b", step / 3, step, walltime=1e9 + step)
        writer.add_text("args", '{"x": 1}', 0)
        writer.add_histogram("h", [1.0, 2.0], 1)
        writer.add_scalar("negative", -1.5, -3)
    [path] = tmp_path.iterdir()
    assert events.is_events(path.read_bytes()[:64])
    with path.open("rb") as file:
        found = list(events.events(file))
    scalars = [e for e in found if e.tag == "a/b"]
    assert [(e.step, e.wall_s) for e in scalars] == [(s, 1e9 + s) for s in range(300)]
    assert [e.value for e in scalars] == pytest.approx([s / 3 for s in range(300)], rel=1e-7)
    assert [(e.step, e.value) for e in found if e.tag == "negative"] == [(-3, -1.5)]
    assert [e.value for e in found if e.tag.startswith("args")] == ['{"x": 1}']
    assert not [e for e in found if e.tag == "h"]


def test_files_of_torchs_writer(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    board = pytest.importorskip("torch.utils.tensorboard", reason="tensorboard is not installed")
    with board.SummaryWriter(str(tmp_path)) as writer:
        writer.add_scalar("old", 1.25, 7)
        writer.add_scalar("new", 2.5, 8, new_style=True)
        writer.add_scalar("double", 4.125, 9, new_style=True, double_precision=True)
    [path] = tmp_path.iterdir()
    with path.open("rb") as file:
        found = {e.tag: (e.step, e.value) for e in events.events(file)}
    assert found == {"old": (7, 1.25), "new": (8, 2.5), "double": (9, 4.125)}


def test_an_event_file_that_breaks_off_gives_what_came_before(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX", reason="TensorBoard's writer is not installed")
    from tensorboardX import SummaryWriter

    with SummaryWriter(str(tmp_path)) as writer:
        for step in range(10):
            writer.add_scalar("a", float(step), step)
    [path] = tmp_path.iterdir()
    whole = path.read_bytes()
    for end in range(60, len(whole), 7):
        found, damaged = [], 0
        try:
            for event in events.events(io.BytesIO(whole[:end])):
                found.append(event.value)
        except events.DamagedError as error:
            damaged = error.record
        assert found == [float(v) for v in range(len(found))]
        assert damaged in (0, len(found) + 2)  # the first record holds the version


@given(st.binary(max_size=300), st.booleans())
def test_events_of_any_bytes(data: bytes, framed: bool) -> None:
    try:
        for event in events.events(io.BytesIO(_record(data) if framed else data)):
            assert isinstance(event.value, float | str)
    except events.DamagedError as error:
        _sentence(error)
