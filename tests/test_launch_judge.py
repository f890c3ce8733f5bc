"""The judge of launch files tells what was read, what must be asked for, and what failed."""

from pathlib import Path

import pytest

from benchmarks.launches import TRUTH, compared, facts, judged, listed, table
from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.stacks.settings import Place, Setting, meanings
from rollcast.simulator.stacks.stack import all_stacks

WHOLE = """python3 -m verl.trainer.main_ppo \\
    data.train_batch_size=64 \\
    actor_rollout_ref.model.path=Qwen/Qwen2.5-7B \\
    actor_rollout_ref.rollout.n={n}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, n in (("whole", "8"), ("asks", "$GROUP"), ("wrong", "'8")):
        (tmp_path / f"{name}.sh").write_text(WHOLE.format(n=n))
    (tmp_path / "none.sh").write_text("echo nothing to launch\n")
    return tmp_path


@pytest.mark.parametrize(
    ("name", "outcome"),
    [("whole", "unaided"), ("asks", "asks"), ("wrong", "failed"), ("none", "failed")],
)
def test_a_file_is_judged_by_what_a_user_is_asked(folder: Path, name: str, outcome: str) -> None:
    assert judged(folder, "verl", f"{name}.sh").outcome == outcome


def test_a_value_that_the_file_gives_must_be_read(folder: Path) -> None:
    (folder / "set.sh").write_text("date | read GROUP\n" + WHOLE.format(n="$GROUP"))
    assert judged(folder, "verl", "set.sh").outcome == "asks"
    (folder / "set.sh").write_text("( GROUP=8 )\n" + WHOLE.format(n="$GROUP"))
    assert judged(folder, "verl", "set.sh").outcome == "failed"


def test_another_stack_is_a_failure(folder: Path) -> None:
    assert judged(folder, "trl", "whole.sh").failure == "is taken for verl"


def test_a_file_that_nobody_has_is_asked_for(folder: Path) -> None:
    place = folder / "trl" / "one"
    (place / "configs").mkdir(parents=True)
    call = "bash configs/train.sh --num_generations 8\n"
    (place / "run.sh").write_text(call)
    assert judged(folder, "trl", "trl/one/run.sh").asked == ("the file configs/train.sh",)
    (place / "deep" / "configs").mkdir(parents=True)
    (place / "deep" / "configs" / "train.sh").write_text("echo\n")
    assert judged(folder, "trl", "trl/one/run.sh").outcome == "failed"


def test_the_table_counts_by_stack(folder: Path) -> None:
    cases = [judged(folder, "verl", f"{name}.sh") for name in ("whole", "asks", "wrong", "none")]
    row = table(cases).splitlines()[2]
    assert row.startswith("| verl | 4 | 1 | 1 | 2 | 50.0 % |")


def test_facts_are_found_under_any_of_their_names() -> None:
    here = Place("run.sh", 1)
    known = {
        key: Setting(key, its, key, here)
        for key, its in (("run.nodes", 2), ("run.gpus_per_node", 8), ("run.batch_rollouts", 512))
    }
    said = facts(known)
    assert (said["GPUs"], said["prompts"], said["model"]) == (16, 512, None)


@pytest.mark.parametrize(
    ("text", "said"), [("stack\nverl\n", "stack and path"), ("stack,path\nverl,no.sh\n", "no.sh")]
)
def test_a_list_that_is_none_is_told(folder: Path, text: str, said: str) -> None:
    names = folder / "files.csv"
    names.write_text(text)
    with pytest.raises(ScenarioError, match=said):
        listed(folder, names)


def test_fields_are_compared_with_the_truth(folder: Path) -> None:
    place = folder / "verl" / "some+one"
    place.mkdir(parents=True)
    (place / "run.sh").write_text(WHOLE.format(n="8"))
    truth = folder / "truth.yaml"
    truth.write_text(
        "launches:\n"
        "- {stack: verl, repository: some/one, path: run.sh, settings: {workload.group_size: 8,"
        " workload.batch_groups: 32, engine.kv_tokens: null}}\n"
        "- {stack: trl, repository: some/one, path: ../../verl/some+one/run.sh,"
        " settings: {model: a}}\n"
        "- {stack: verl, repository: some/one, path: run.sh, refused: it does not run}\n"
    )
    (folder / "trl" / "some+one").mkdir(parents=True)
    fields, right, wrong = compared(folder, truth)
    assert (fields, right, len(wrong)) == (5, 2, 3)
    assert "workload.batch_groups is 32, read as 64" in wrong[0]


def test_what_was_read_by_eye_is_of_our_keys() -> None:
    import yaml

    cases = yaml.safe_load(TRUTH.read_text("utf-8"))["launches"]
    assert len(cases) == 40
    assert {case["stack"] for case in cases} <= all_stacks().keys()
    assert {key for case in cases for key in case.get("settings", ())} <= meanings().keys()
