"""The reference of every key: complete, and made of what the keys are read by."""

import copy
import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollcast.engine.options import SECTIONS
from rollcast.simulator.cli import init
from rollcast.simulator.cli.app import main
from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.policies import POLICIES
from rollcast.simulator.scenario.file import RawScenario, read_scenario
from rollcast.simulator.scenario.reference import FIRST, below, find, reference
from rollcast.simulator.scenario.scenario import build_scenario
from rollcast.simulator.scenario.sections import ScenarioModel, validate
from rollcast.simulator.values import Anything, Nullable, Number, declared
from tests.laws import examples as of_law
from tests.refusals import refused
from tests.scenarios import LINEAR, MINIMAL

OPEN = ("ScenarioModel.policy", "PlanSection.choose", "PlanSection.quality", "LoraConfig.targets")
"""Options that a reader of their own looks into."""

ENTRIES = reference(SECTIONS)
KEYS = sorted({entry.key for entry in ENTRIES})


def kinds(kind: type) -> set[type]:
    """A section and every section below it."""
    found = {kind}
    for option in declared(kind):
        for each in option.reader.below():
            found |= kinds(each)
    return found


SECTIONS_OF_ALL = set().union(*map(kinds, (ScenarioModel, *SECTIONS.values(), *POLICIES.values())))


@pytest.mark.parametrize("kind", sorted(SECTIONS_OF_ALL, key=lambda kind: kind.__name__))
def test_every_option_has_a_type_and_a_meaning_and_every_number_a_unit(kind: type) -> None:
    for option in declared(kind):
        name = f"{kind.__name__}.{option.key}"
        reader = option.reader.inner if isinstance(option.reader, Nullable) else option.reader
        assert option.doc.meaning, name
        assert not option.doc.meaning.endswith("."), name
        if isinstance(reader, Anything):
            assert f"engine.{option.key}" in SECTIONS or name in OPEN, name
        if isinstance(reader, Number):
            assert option.unit or option.key == "seed", name


def test_every_key_is_found_by_its_name() -> None:
    for entry in ENTRIES:
        assert entry in find(entry.key, ENTRIES)
        assert entry.value, entry
        assert entry.holds == bool(below(entry.key, ENTRIES)), entry


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("cluster.trainers_gpus", "did you mean cluster.trainer_gpus"),
        ("policy.april.oversampling", "policy.april.over_sampling"),
        ("over_sampling", "unknown key; did you mean policy.april.over_sampling or "),
        ("mean_tokens", "unknown key; did you mean workload.lengths.mean_tokens?"),
        (
            "zzz",
            "valid: cluster, cost, engine, environment, gpu, learning, model, modules, name, plan, "
            "policy, poll_s, reward, seed, steps, workload",
        ),
        ("x" * 10_000, "unknown key; valid"),
    ],
)
def test_a_wrong_key_offers_the_nearest(key: str, said: str) -> None:
    with pytest.raises(ScenarioError, match="unknown key") as caught:
        find(key, ENTRIES)
    assert said in caught.value.message


def test_an_entry_of_a_list_is_explained_as_its_like() -> None:
    [entry] = find("workload.lengths.components[3].weight", ENTRIES)
    assert entry.value == "a number above 0 and up to 1"
    assert below("", ENTRIES)[0].key == "workload"


def test_units_and_defaults_are_those_of_the_key() -> None:
    """Also where the whole name is the unit, and where the default depends on other keys."""
    for key, unit, default in (
        ("cost.roofline.sync.bytes_per_s", "bytes per second", "null"),
        ("cost.roofline.sync.fixed_s", "seconds", "null"),
        ("model.head_dim", "elements", "hidden / heads"),
        ("model.layers", "layers", ""),
    ):
        [entry] = find(key, ENTRIES)
        assert (entry.unit, entry.default) == (unit, default)


def test_a_section_is_listed_once_and_found_wherever_it_may_stand() -> None:
    path = "cost.tables.roofline.trainer.critic_model"
    assert f"{path}.layers" not in KEYS
    [entry] = find(f"{path}.layers", ENTRIES)
    [listed] = find("model.layers", ENTRIES)
    assert entry == replace(listed, key=f"{path}.layers")
    assert [each.key.rpartition(".")[2] for each in below(path, ENTRIES)] == [
        each.key.rpartition(".")[2] for each in below("model", ENTRIES)
    ]
    with pytest.raises(ScenarioError, match=r"did you mean model\.layers"):
        find(f"{path}.layer", ENTRIES)


def test_the_first_keys_are_thirty() -> None:
    keys = [key for names in FIRST.values() for key in names]
    assert len(keys) == len(set(keys)) == 30
    assert set(keys) <= set(KEYS)


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as left:
        main(arguments)
    captured = capsys.readouterr()
    return int(left.value.code or 0), captured.out, captured.err


def test_explain_prints_a_key_its_range_default_unit_and_source(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, out, _ = said(capsys, "explain", "policy.april.over_sampling")
    assert code == 0
    for part in ("a number from 1 to 1000", "default  2", "batches", "the paper: 64 groups"):
        assert part in out
    code, out, _ = said(capsys, "explain", "cluster")
    assert "cluster.trainer_gpus" in out
    code, out, _ = said(capsys, "explain")
    assert all(key in out for key in ("cluster", "workload", "policy", "steps"))
    code, out, _ = said(capsys, "explain", "--json", "workload.rewards.mean")
    assert {entry["when"] for entry in json.loads(out)} == {
        "with family: beta_bernoulli",
        "with family: normal",
    }
    err = refused(said(capsys, "explain", "cluster.trainers_gpus"))
    assert "did you mean cluster.trainer_gpus" in err


def test_an_old_key_still_works_and_a_note_names_the_new_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, out, _ = said(capsys, "explain", "environment.put_away")
    assert code == 0
    assert "environment.on_suspend" in out
    arguments = ("simulate", "examples/agent.yaml", "--draws", "0", "--json", "--set", "steps=1")
    small = ("--set", "workload.batch_groups=2", "--set", "policy=april")
    runs = {
        key: said(capsys, *arguments, *small, "--set", f"environment.{key}=close")
        for key in ("put_away", "on_suspend")
    }
    note = "note: environment.put_away is called environment.on_suspend now; use that name\n"
    code, out, err = runs["put_away"]
    assert (code, err) == (0, note)
    assert (0, out, "") == runs["on_suspend"]


def test_init_prints_an_example_or_lists_them(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    code, out, _ = said(capsys, "init", "april")
    assert (code, out) == (0, init.text("april"))
    (tmp_path / "scenario.yaml").write_text(out)
    assert build_scenario(read_scenario(tmp_path / "scenario.yaml")).steps > 0
    code, out, _ = said(capsys, "init")
    assert code == 0
    assert all(name in out for name in init.names())
    err = refused(said(capsys, "init", "aprl"))
    assert "april" in err


# Any value at any key

BASE: dict[str, Any] = {
    **MINIMAL,
    "model": {"preset": "qwen3-0.6b"},
    "gpu": {"preset": "h100-sxm"},
    "cluster": {"replicas": 2},
    "cost": {"roofline": {}},
}
PARTS: Mapping[str, Mapping[str, Any]] = {  # what else a key needs to be read at all
    "cost.linear": LINEAR,
    "cost.roofline.speculative": {
        "method": "draft_model",
        "tokens": 3,
        "acceptance": 0.7,
        "draft_model": "qwen3-0.6b",
    },
    "cost.roofline.speculative.draft_model": {"preset": "qwen3-0.6b"},
    **{
        f"cost.roofline.trainer.{role}_model": {"preset": "qwen3-0.6b"}
        for role in ("reference", "critic", "reward")
    },
    "workload.rewards": {"family": "normal", "mean": 0, "within_sd": 1},
    "workload.lengths": BASE["workload"]["lengths"],
    "workload.turns": {"preset": "swe"},
    "workload.prompt_tokens": {"median_tokens": 10, "sd": 1, "max_tokens": 20},
}
OF_SIMULATOR = [
    key
    for key in KEYS
    if not key.startswith("policy.") and not any(key.startswith(f"{each}.") for each in SECTIONS)
]
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=6)
    | st.sampled_from(["lognormal", "mixture", "1e9", "roofline", "~", "~nobody/x", "qwen3-8b"]),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.text(max_size=4) | st.sampled_from([key.rpartition(".")[2] for key in KEYS]),
            inner,
            max_size=3,
        )
    ),
    max_leaves=6,
)


def put(key: str, value: Any) -> dict[str, Any]:
    """`BASE` with one key set, and what must stand beside it."""
    data = copy.deepcopy(BASE)
    place = data
    *above, last = key.split(".")
    for depth, part in enumerate(above, start=1):
        whole = ".".join(above[:depth])
        if part in ("linear", "file", "tables") and above[0] == "cost":
            place.clear()
        whole = whole.replace("cost.tables.roofline", "cost.roofline")
        if whole in PARTS or not isinstance(place.get(part), dict):
            place[part] = copy.deepcopy(dict(PARTS.get(whole, {})))
        place = place[part]
    if last in ("linear", "file", "tables") and above == ["cost"]:
        place.clear()
    place[last] = value
    return data


@given(st.sampled_from(OF_SIMULATOR), VALUES)
@settings(max_examples=of_law(1000))
def test_any_value_at_any_key_builds_or_is_refused_by_name(key: str, value: Any) -> None:
    data = put(key, value)
    refusal = None
    try:
        validate(data)
    except ScenarioError as error:
        refusal = error
    if refusal is not None:  # it names the key, one beside it that it contradicts, or what it is of
        home = key.rpartition(".")[0]
        assert refusal.field.startswith(home) or home.startswith(refusal.field)
        assert "\n" not in refusal.message
    try:
        build_scenario(RawScenario(data))
    except ScenarioError as error:
        refusal = error
    assert (
        refusal is None or refusal.field == "" or re.split(r"[.[]", refusal.field)[0] in data | BASE
    )


POLICY_KEYS = [key for key in KEYS if key.count(".") == 2 and key.startswith("policy.")]


@given(st.sampled_from(POLICY_KEYS), VALUES)
@settings(max_examples=of_law(500))
def test_any_parameter_of_a_policy_builds_or_is_refused_by_name(key: str, value: Any) -> None:
    _, name, parameter = key.split(".")
    params = {"keep": 2, parameter: value} if name == "pods" else {parameter: value}
    refusal = None
    try:
        build_scenario(RawScenario({**BASE, "policy": [{name: params}]}))
    except ScenarioError as error:
        refusal = error
    if refusal is not None:
        own = "dynamic_sampling" if name == "dapo_filter" else name  # of which it is another name
        named = (f"policy.{name}", f"policy.{own}.", "workload.group_size", "cluster.")
        assert refusal.field.startswith(named)
