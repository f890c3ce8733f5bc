"""Every example loads, runs and keeps its books; so does the command line's own scenario."""

import runpy
from pathlib import Path
from typing import Any

import pytest

from rollcast.simulator.cli import init
from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.studies.simulate import load, simulate

EXAMPLES = Path(__file__).parent.parent / "examples"
NAMES = sorted(path.name for path in EXAMPLES.glob("*.yaml"))


def test_every_example_is_described() -> None:
    text = (EXAMPLES / "README.md").read_text("utf-8")
    assert NAMES
    assert [name for name in NAMES if f"`{name}`" not in text] == []


@pytest.mark.parametrize("name", NAMES)
def test_example_runs(name: str) -> None:
    steps = 1 if name in ("agent.yaml", "peers.yaml") else 3
    fewer = ["workload.batch_groups=8"] if name == "agent.yaml" else []
    result = simulate(load(EXAMPLES / name, f"steps={steps}", *fewer))
    assert len(result.run.steps) == steps
    assert result.run.ledger.trained_tokens > 0


def both(name: str, *settings: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Summaries of the example's policy and of synchronous RL."""
    checked = load(EXAMPLES / name, *settings)
    return simulate(checked).summary, simulate(checked.with_policy("sync")).summary


def test_pods_trains_on_a_quarter_of_the_same_rollouts() -> None:
    pods, sync = both("pods.yaml", "steps=4")
    assert pods["generated_tokens"] == sync["generated_tokens"]
    assert pods["rollouts"] == 4 * 64
    assert {
        r.trained_rollouts for r in simulate(load(EXAMPLES / "pods.yaml", "steps=2")).run.steps
    } == {16}
    assert pods["train_s"] < 0.5 * sync["train_s"]


def test_prefix_reuse_changes_the_trainer_alone() -> None:
    reuse, sync = both("prefix_reuse.yaml", "steps=2")
    assert reuse["rollout_s"] == pytest.approx(sync["rollout_s"])
    bound = 16 * (10_240 + 1_500) / (10_240 + 16 * 1_500)  # at the mean response, roughly
    assert 1.5 < sync["train_s"] / reuse["train_s"] < 1.1 * bound


def test_peers_has_512_rollouts_that_overflow_the_pool() -> None:
    summary = simulate(load(EXAMPLES / "peers.yaml")).summary
    assert summary["rollouts"] == 512
    assert summary["preemptions"] > 0


def test_trace_is_what_its_generator_makes() -> None:
    made = runpy.run_path(str(EXAMPLES / "make_trace.py"))["lines"]()
    assert (EXAMPLES / "trace.csv").read_text("utf-8").splitlines() == made


def test_trace_is_replayed() -> None:
    lines = (EXAMPLES / "trace.csv").read_text("utf-8").splitlines()[1:]
    rows = [tuple(map(int, line.split(","))) for line in lines]
    lengths = {(group, index): min(new, 8192) for group, index, _, new, _ in rows}
    result = simulate(load(EXAMPLES / "trace.yaml", "steps=2", "policy=[]"))
    segments = result.run.segments
    seen = zip(segments["group"].tolist(), segments["index"].tolist(), strict=True)
    assert len(segments) == 2 * 64
    assert [lengths[key] for key in seen] == segments["total_tokens"].tolist()


ROOT = Path(__file__).parent.parent


def test_every_example_of_the_checkout_is_offered_as_it_is_written() -> None:
    assert init.names() == sorted(file.stem for file in (ROOT / "examples").glob("*.yaml"))
    for name in init.names():
        assert init.text(name) == (ROOT / "examples" / f"{name}.yaml").read_text("utf-8")
    assert load(init.folder() / "trace.yaml").name == "trace"


@pytest.mark.parametrize("name", ["aprl", "april.yaml", "../april"])
def test_another_name_is_refused_with_the_nearest(name: str) -> None:
    with pytest.raises(ScenarioError, match="did you mean april"):
        init.text(name)


def test_the_examples_of_a_wheel_come_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Someone else's folder ``examples`` may lie in site-packages, too."""
    for place, text in (("rollcast/examples", "steps: 1\n"), ("examples", "steps: 2\n")):
        folder = tmp_path / place
        folder.mkdir(parents=True)
        (folder / "april.yaml").write_text(text, encoding="utf-8")
    where = [tmp_path / "rollcast" / "examples", tmp_path / "examples"]
    monkeypatch.setattr(init, "_FOLDERS", where)
    assert (init.names(), init.text("april")) == (["april"], "steps: 1\n")
    (where[0] / "april.yaml").unlink()
    assert init.text("april") == "steps: 2\n"
    (where[1] / "april.yaml").unlink()
    with pytest.raises(ScenarioError, match="missing from this installation"):
        init.names()
