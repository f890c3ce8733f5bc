"""The world in which small models learn: the laws of any world, ages of tokens, whole files."""

import json
import random
from pathlib import Path

import pytest
import torch

from benchmarks.learning import campaign
from benchmarks.learning.arms import ARMS, Arm, Setup, setups
from benchmarks.learning.learner import Learner
from benchmarks.learning.model import Decoder, encode
from benchmarks.learning.sampling import Row, Sampler
from benchmarks.learning.tasks import TASKS
from benchmarks.learning.warm import new_model
from benchmarks.learning.world import LearningWorld
from rollcast.testing import Trial, try_on


def tried(
    task_name: str, policy: str, train_s: float = 3.0, steps: int = 6
) -> tuple[Trial, Learner]:
    """A few steps of an untrained model."""
    torch.manual_seed(0)
    task = TASKS[task_name]
    learner = Learner(task, new_model(task), 1e-3, 1)
    world = LearningWorld(task, learner, slots=64, train_s=train_s, apart=True, seed=0)
    return try_on(world, policy, batch_groups=3, group_size=4, steps=steps), learner


@pytest.mark.parametrize(
    ("task", "policy", "oldest"),
    [
        ("ask", "sync", 0),
        ("walk", "april(over_sampling=2)", 5),
        ("sum", "pipeline_rl", 5),
        ("ask", "fully_async(max_staleness=2)", 2),
        ("sum", "token_budget(tokens=3)", 5),
    ],
)
def test_every_token_is_accounted_for(task: str, policy: str, oldest: int) -> None:
    trial, learner = tried(task, policy)
    assert trial.run.ledger.balance == 0
    assert len(learner.updates) >= len(trial.steps)
    ages = {age for step in trial.steps for age in step.staleness}
    assert max(ages) <= oldest
    assert bool(oldest) == (max(ages) > 0)


def test_the_decoder_samples_what_the_model_says() -> None:
    """Log-probabilities of a response with replies in it are those of one pass over the whole."""
    torch.manual_seed(1)
    task = TASKS["ask"]
    model = new_model(task)
    rows = [Row("abc=", "1234567"), Row("fed=", "7654321", text="a7", sampled=[True, False])]
    rows[1].log_probs, rows[1].versions = [0.0, 0.0], [0, -1]
    sampler = Sampler(task, Decoder(model, 4), 4, seed=0)
    sampler.start(rows)
    while sampler.slots:
        for slot in sampler.step(0):
            sampler.stop(slot)
    for row in rows:
        codes = torch.tensor([encode(row.prompt + row.text)])
        logs = model(codes).log_softmax(-1)[0, task.width - 1 : -1]
        said = logs.gather(1, codes[0, task.width :, None])[:, 0].tolist()
        first = 2 if row is rows[1] else 0
        for at in range(first, len(row.text)):
            if row.sampled[at]:
                assert row.log_probs[at] == pytest.approx(said[at], abs=1e-4)


def test_tasks_show_what_they_reward() -> None:
    draw = random.Random(0)
    for task in TASKS.values():
        for _ in range(60):
            prompt, said, who = task.demonstration(draw)
            assert (len(prompt), len(said)) == (task.width, len(who))
            assert len(said) <= task.longest
            assert said.endswith("$")
        assert task.reward(task.prompt(draw)[1], "$") == 0
    assert TASKS["sum"].reward("7", "136027>7$") == TASKS["ask"].reward("1234567", "a1>7$") == 1
    assert TASKS["walk"].reward("ba$", "ba$") == 1


def test_a_campaign_goes_on_and_leaves_whole_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TASKS["sum"], "updates", 2)
    monkeypatch.setattr(TASKS["sum"], "start", 0.0)
    monkeypatch.setattr(
        campaign, "setups", lambda: iter([Setup("sum", Arm("sync", groups=2), 0, 0)])
    )
    said: list[str] = []
    assert campaign.run(tmp_path, said.append) == 0
    [path] = (tmp_path / "runs").iterdir()
    table = json.loads(path.read_text())
    assert len(table["updates"]["reward"]) == 2
    assert campaign.run(tmp_path, said.append) == 0
    assert said[-1] == "1 of 1 runs are there"


def test_the_table_names_each_run_once() -> None:
    names = [setup.name for setup in setups()]
    assert len(names) == len(set(names)) >= 300
    assert len({arm.name for arm in ARMS}) == len(ARMS)
