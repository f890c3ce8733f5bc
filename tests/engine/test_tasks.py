"""The Collatz task, its tokenizer and warm start; any other prompts and reward functions."""

import json
import math
import re
import shutil
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import Qwen3ForCausalLM

from rollcast.engine.errors import EngineError
from rollcast.engine.options import TrainerConfig
from rollcast.engine.start import TrainerStart
from rollcast.engine.tasks import collatz, named, tokenizer, warm_start
from rollcast.engine.tasks.base import Prompt, Task
from rollcast.engine.tasks.collatz import CollatzTask
from rollcast.engine.tasks.custom import FileTask
from rollcast.engine.tasks.model import build_model
from rollcast.engine.tasks.rewards import ENOUGH_FAILURES, RewardPool
from rollcast.engine.tasks.warm_start import Lesson, Recipe
from rollcast.engine.vllm.start import ReplicaOptions
from rollcast.simulator.core.rollout import LateReward
from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.scenario.sections import EngineSection
from tests.refusals import refuses

SHORT = Recipe(steps=8, warmup_steps=2, batch_tokens=512, adaptation_steps=3)


def number_of(prompt: Prompt) -> int:
    return int(prompt.text.rsplit("\n", 1)[-1].rstrip(">"))


def right_response(start: int) -> str:
    """By the definition, not by the module."""
    value, text = start, ""
    while value >= start:
        value = value // 2 if value % 2 == 0 else 3 * value + 1
        text += f">{value}"
    return f"{text[1:]}={value}"


# The task


@settings(deadline=None)
@given(group=st.integers(0, 10**6), seed=st.integers(0, 100), style=st.sampled_from(collatz.STYLES))
def test_a_right_response_is_rewarded_and_another_is_not(group: int, seed: int, style: str) -> None:
    task = CollatzTask(style)
    prompt = task.prompt(group, seed)
    response = right_response(number_of(prompt))
    assert task.reward(prompt, response) == 1.0
    assert task.reward(prompt, f"1=1!{response}") == 1.0
    for wrong in (response + "0", response + "=", response.replace("=", ""), "", response[:-1]):
        assert task.reward(prompt, wrong) == 0.0
    assert tuple(tokenizer.encode(prompt.text)) == prompt.token_ids
    assert len(response) <= collatz.MOST_CHARACTERS < task.max_new_tokens


def test_prompts_are_drawn_by_seed_and_group_alone() -> None:
    task = CollatzTask()
    first = [task.prompt(group, 3).text for group in range(200)]
    assert [CollatzTask().prompt(group, 3).text for group in reversed(range(200))] == first[::-1]
    assert [task.prompt(group, 4).text for group in range(200)] != first
    assert len(set(first)) > 190


def test_held_out_starts_are_never_trained_on() -> None:
    task = CollatzTask()
    held_out = {number_of(prompt) for prompt in task.held_out(2000)}
    trained = {number_of(task.prompt(group, 0)) for group in range(20_000)}
    assert not held_out & trained
    assert task.held_out(5) == task.held_out(2000)[:5]
    starts, characters = collatz._all_starts()
    assert collatz._is_held_out(starts).mean() == pytest.approx(1 / 8, abs=0.005)
    for start, length in zip(starts[::997].tolist(), characters[::997].tolist(), strict=True):
        assert len(right_response(start)) == length


@pytest.mark.parametrize("held_out", [False, True])
def test_lengths_are_long_tailed(held_out: bool) -> None:
    task = CollatzTask()
    prompts = task.held_out(4000) if held_out else [task.prompt(g, 0) for g in range(4000)]
    lengths = np.array([len(right_response(number_of(prompt))) + 1 for prompt in prompts])
    assert np.quantile(lengths, 0.99) >= 5 * np.median(lengths)
    assert np.log(lengths).std() == pytest.approx(collatz.LOG_SD, abs=0.06)
    assert np.median(lengths) == pytest.approx(collatz.MEDIAN_CHARACTERS, rel=0.1)


def test_the_worded_prompt_shares_a_long_and_truthful_beginning() -> None:
    task = CollatzTask("worded")
    one, two = task.prompt(0, 0), task.prompt(1, 0)
    shared = len(task.preamble)
    assert shared > 500
    assert one.token_ids[:shared] == two.token_ids[:shared]
    assert one.token_ids != two.token_ids
    examples = [line for line in task.preamble.splitlines() if line[:1].isdigit()]
    assert len(examples) == 4
    for line in examples:
        start, _, response = line.partition(">")
        assert response == right_response(int(start))


@settings(deadline=None)
@given(seed=st.integers(0, 10**6), start=st.sampled_from([6, 7, 27, 447, 52_281]))
def test_the_teacher_is_right_without_slips_and_finishes_with_them(seed: int, start: int) -> None:
    assert collatz.teacher_response(start, Random(seed), 0.0) == right_response(start)
    slipped = collatz.teacher_response(start, Random(seed), 0.3)
    body, _, answer = slipped.rpartition("=")
    assert int(answer) < start
    assert body.endswith(answer)
    assert len(slipped) <= collatz.MOST_CHARACTERS


def test_the_teacher_slips_as_often_as_it_should() -> None:
    rng, slips, steps, noticed = Random(0), 0, 0, 0
    for _ in range(2000):
        text = collatz.teacher_response(97, rng, 0.1).partition("=")[0]
        value = 97
        for part in text.split(">"):
            first, sign, second = part.partition("!")
            right = value // 2 if value % 2 == 0 else 3 * value + 1
            slips += int(first) != right
            noticed += bool(sign)
            assert not sign or int(second) == right
            value, steps = int(second or first), steps + 1
    assert slips / steps == pytest.approx(0.1, abs=0.01)
    assert noticed / slips == pytest.approx(0.5, abs=0.05)


def test_a_style_or_cap_that_is_not_one() -> None:
    with pytest.raises(ScenarioError, match=r"engine.task.style: 'wordy' is unknown"):
        CollatzTask("wordy")
    with pytest.raises(ScenarioError, match=r"engine.task.max_new_tokens: it has to be at least 1"):
        CollatzTask(max_new_tokens=0)


# Tokenizer and warm start


@settings(deadline=None)
@given(text=st.text(tokenizer.CHARACTERS, max_size=80))
def test_text_survives_the_tokenizer(text: str) -> None:
    ids = tokenizer.encode(text)
    assert len(ids) == len(text)
    assert CollatzTask().decode([*ids, tokenizer.END_ID, 5, 6]) == text


@pytest.fixture(scope="session")
def short_start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return warm_start.warm_start(SHORT, folder=tmp_path_factory.mktemp("cache"))


def test_hugging_face_loads_the_tokenizer_and_agrees(short_start: Path) -> None:
    from transformers import AutoTokenizer

    loaded = AutoTokenizer.from_pretrained(short_start)
    for text in ("27>82>41!42=5", "two\nlines and  spaces", "", "é?"):
        assert loaded.encode(text) == tokenizer.encode(text)
    ids = tokenizer.encode("9>28>14=7\n x")
    assert loaded.decode(ids) == "9>28>14=7\n x"
    assert (loaded.eos_token_id, loaded.pad_token_id) == (tokenizer.END_ID, tokenizer.PAD_ID)
    assert loaded.decode([*ids, tokenizer.END_ID], skip_special_tokens=True).endswith(" x")


def test_the_model_is_small_and_built_by_its_seed() -> None:
    before = torch.get_rng_state()
    one, same, other = build_model(1), build_model(1), build_model(2)
    assert torch.equal(before, torch.get_rng_state())
    assert sum(p.numel() for p in one.parameters()) == 616_000
    for name, value in one.state_dict().items():
        assert torch.equal(value, same.state_dict()[name])
    assert not torch.equal(one.lm_head.weight, other.lm_head.weight)


def test_a_warm_start_learns_is_kept_and_reproducible(short_start: Path, tmp_path: Path) -> None:
    record = json.loads((short_start / "warm_start.json").read_text())
    assert record["loss"][-1] < record["loss"][0] - 0.3
    seen: list[int] = []
    again = warm_start.warm_start(
        SHORT, folder=short_start.parent, progress=lambda step, steps, loss: seen.append(step)
    )
    assert again == short_start
    assert not seen
    fresh = warm_start.warm_start(
        SHORT, folder=tmp_path, progress=lambda step, steps, loss: seen.append(step)
    )
    assert seen == list(range(1, SHORT.steps + 1))
    weights = "model.safetensors"
    assert (fresh / weights).read_bytes() == (short_start / weights).read_bytes()
    assert [path.name for path in tmp_path.iterdir()] == [SHORT.name]


def test_the_start_that_everybody_uses_comes_with_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise AssertionError("it trains")

    monkeypatch.setattr(warm_start, "_train", refused)
    place = warm_start.warm_start(folder=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [Recipe().name]
    model = Qwen3ForCausalLM.from_pretrained(place)
    assert model.dtype == torch.float32
    batch = next(warm_start._batches(replace(Recipe(), seed=9), False))
    with torch.no_grad():
        loss = warm_start._loss(model, [], batch).item()
    assert loss < 0.4  # 4.7 untaught; what is left are the teacher's slips
    with pytest.raises(AssertionError, match="it trains"):
        warm_start.warm_start(replace(Recipe(), steps=2001), folder=tmp_path)


def test_the_worded_start_adapts_the_bare_one(short_start: Path) -> None:
    worded = warm_start.warm_start(replace(SHORT, style="worded"), folder=short_start.parent)
    assert worded != short_start
    weights = [(folder / "model.safetensors").read_bytes() for folder in (worded, short_start)]
    assert weights[0] != weights[1]


def test_a_preamble_computed_once_gives_the_loss_of_one_in_every_row() -> None:
    model = build_model(0).eval()
    preamble = tokenizer.encode("halve or triple\n")
    rows, long = [], []
    for n in (6, 7, 12, 15):
        prompt = tokenizer.encode(f"{n}>")
        response = [*tokenizer.encode(right_response(n)), tokenizer.END_ID]
        taught = [True] * len(response)
        rows.append(Lesson([*prompt, *response], [*[False] * len(prompt), *taught]))
        before = [*preamble, *prompt]
        long.append(Lesson([*before, *response], [*[False] * len(before), *taught]))
    shared = warm_start._loss(model, preamble, rows)
    dense = warm_start._loss(model, [], long)
    assert shared.item() == pytest.approx(dense.item(), rel=1e-5)
    gradients = []
    for loss in (shared, dense):
        model.zero_grad()
        loss.backward()
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters()]))  # type: ignore[union-attr]
    assert torch.allclose(gradients[0], gradients[1], atol=1e-6, rtol=1e-4)


def test_recipes_have_names_of_their_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    recipes = [Recipe(), Recipe(steps=9), Recipe(slip=0.1), Recipe(style="worded"), Recipe(seed=1)]
    assert len({recipe.name for recipe in recipes}) == len(recipes)
    assert Recipe(adaptation_steps=7).name == Recipe().name  # it matters to worded ones alone
    assert Recipe(style="worded", adaptation_steps=7).name != Recipe(style="worded").name
    monkeypatch.setenv("ROLLCAST_CACHE", str(tmp_path))
    assert warm_start.cache_folder() == tmp_path
    monkeypatch.delenv("ROLLCAST_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert warm_start.cache_folder() == tmp_path / "rollcast"


def test_a_warm_start_that_is_stopped_leaves_nothing(tmp_path: Path) -> None:
    def stop(step: int, steps: int, loss: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        warm_start.warm_start(SHORT, folder=tmp_path, progress=stop)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("terminal", [False, True])
def test_a_progress_bar_on_a_terminal_alone(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    terminal: bool,
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    warm_start.warm_start(replace(SHORT, steps=1), folder=tmp_path)
    said = capfd.readouterr()
    assert ("warm start, loss" in said.err) == terminal
    assert terminal or said == ("", "")


# Other tasks


@pytest.fixture
def rewards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    source = """
        import time

        NOTHING = 3

        def length(prompt, response, answer):
            return len(response) / answer

        def breaks(prompt, response, answer):
            raise ValueError("cannot parse")

        def exits(prompt, response, answer):
            raise SystemExit(1)

        def hangs(prompt, response, answer):
            time.sleep(30 if response == "slow" else 0)
            return 1

        def misleads(prompt, response, answer):
            return answer
    """
    (tmp_path / "my_rewards.py").write_text(textwrap.dedent(source))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "my_rewards", raising=False)
    return "my_rewards"


@pytest.fixture
def make_task(short_start: Path, tmp_path: Path, rewards: str) -> Callable[..., FileTask]:
    def make(function: str = "length", answer: Any = 4, **options: Any) -> FileTask:
        file = tmp_path / "prompts.jsonl"
        lines = [json.dumps({"prompt": f"say {i}", "answer": answer}) for i in range(60)]
        file.write_text("\n".join(lines) + "\n\n")
        options = {"max_new_tokens": 16, "reward_timeout_s": 0.3} | options
        return FileTask(file, f"{rewards}:{function}", short_start, **options)

    return make


def test_any_prompts_and_any_reward_function(make_task: Callable[..., FileTask]) -> None:
    task: Task = make_task()
    held_out = {prompt.text for prompt in task.held_out(60)}
    train = {task.prompt(group, 0).text for group in range(60)}
    assert held_out
    assert held_out | train == {f"say {i}" for i in range(60)}
    assert not held_out & train
    epoch = [task.prompt(group, 0).text for group in range(2 * len(train))]
    assert sorted(epoch[: len(train)]) == sorted(epoch[len(train) :]) == sorted(train)
    assert epoch[: len(train)] != epoch[len(train) :]
    assert [task.prompt(group, 1).text for group in range(len(train))] != epoch[: len(train)]
    prompt = task.prompt(0, 0)
    assert list(prompt.token_ids) == tokenizer.encode(prompt.text)
    assert float(task.reward(prompt, "six")) == 0.75
    assert task.decode([*tokenizer.encode("six"), tokenizer.END_ID]) == "six"


@pytest.mark.parametrize(
    ("function", "answer", "response", "message"),
    [
        ("breaks", 1, "x", r"my_rewards:breaks raised ValueError: cannot parse$"),
        ("exits", 1, "x", r"my_rewards:exits raised SystemExit"),
        ("hangs", 1, "slow", r"my_rewards:hangs took longer than 0.3 s$"),
        (
            "misleads",
            "high",
            "x",
            r"my_rewards:misleads returned 'high', which is not a finite num",
        ),
        ("misleads", None, "x", "returned None"),
        ("length", 0, "x", "ZeroDivisionError"),
    ],
)
def test_reward_functions_that_fail_are_named(
    make_task: Callable[..., FileTask], function: str, answer: Any, response: str, message: str
) -> None:
    task = make_task(function, answer, reward_failed=-1.5)
    late = task.reward(task.prompt(0, 0), response)
    assert isinstance(late, LateReward)
    assert math.isnan(late + 0)
    assert float(late) == -1.5
    assert late.known
    assert late.failure is not None
    assert re.search(message, late.failure)


def sleeps(prompt: str, response: str, answer: Any) -> float:
    time.sleep(float(response))
    return float(response)


def test_rewards_are_asked_for_side_by_side() -> None:
    """Each call waits until all of a round have begun."""
    met = threading.Barrier(4)

    def meets(prompt: str, response: str, answer: Any) -> float:
        met.wait(10)
        return float(response)

    pool = RewardPool(meets, "f", concurrency=4)
    late = [pool(Prompt("p", (2,)), str(number)) for number in range(12)]
    assert [float(reward) for reward in late] == [*range(12)]
    assert pool._threads == 4


def test_calls_that_hang_hold_up_no_others() -> None:
    pool = RewardPool(sleeps, "f", timeout_s=0.2, concurrency=2)
    hung = [pool(Prompt("p", (2,)), "3") for _ in range(2)]
    good = pool(Prompt("p", (2,)), "0.01")
    assert float(good) == 0.01  # though nobody has asked for those before it
    assert [float(reward) for reward in hung] == [0.0, 0.0]
    assert hung[1].failure == "the reward function f took longer than 0.2 s"


def test_a_run_ends_only_where_all_rewards_fail() -> None:
    pool = RewardPool(lambda prompt, response, answer: {"a": 1.0}[response], "f")
    prompt = Prompt("p" * 200, (2,))
    late = [pool(prompt, "b") for _ in range(ENOUGH_FAILURES)]
    assert {float(reward) for reward in late[:-1]} == {0.0}
    says = r"first 64 rewards all failed; .*KeyError: 'b' on the prompt 'ppp.*\.\.\."
    with pytest.raises(EngineError, match=says):
        float(late[-1])
    pool = RewardPool(lambda prompt, response, answer: {"a": 1.0}[response], "f")
    late = [pool(prompt, response) for response in ("b" * 30 + "a" + "b" * 80)]
    assert sum(map(float, late)) == 1.0


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("my_rewards", "'my_rewards' is not of the form package.module:function"),
        (":f", "not of the form"),
        ("no_such_module_here:f", "module no_such_module_here cannot be imported"),
        ("my_rewards:missing", "module my_rewards has no function missing"),
        ("my_rewards:NOTHING", "has no function NOTHING"),
    ],
)
def test_reward_paths_that_lead_nowhere(rewards: str, path: str, message: str) -> None:
    with pytest.raises(ScenarioError, match=f"engine.task.reward: .*{message}"):
        named.load_named(path, "engine.task.reward")


@pytest.mark.parametrize(
    ("name", "body", "message"),
    [
        ("exits", "import sys; sys.exit(0)", r"cannot be imported \(SystemExit: 0\)"),
        ("hangs", "while True: pass", r"cannot be imported \(not done after 0.3 s\)"),
    ],
)
def test_reward_modules_whose_import_does_not_end_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, body: str, message: str
) -> None:
    monkeypatch.setattr(named, "IMPORT_LIMIT_S", 0.3)
    (tmp_path / f"reward_that_{name}.py").write_text(body)
    with pytest.raises(ScenarioError, match=message):
        named.load_named(f"reward_that_{name}:reward", "f", folder=tmp_path)


def test_code_in_a_models_folder_is_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever its ``auto_map`` says, and whoever would answer yes."""
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    names = {kind: f"modelling.{kind}" for kind in ("AutoConfig", "AutoModelForCausalLM")}
    config = {
        "model_type": "unheard_of",
        "auto_map": {**names, "AutoTokenizer": ["modelling.T", None]},
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    (tmp_path / "modelling.py").write_text(f"open({str(tmp_path / 'was_run')!r}, 'w')\n")
    (tmp_path / "p.jsonl").write_text('{"prompt": "a"}')
    with pytest.raises(ScenarioError, match="no tokenizer that can be loaded"):
        FileTask(tmp_path / "p.jsonl", "", tmp_path, max_new_tokens=1)
    with pytest.raises(ScenarioError, match="cannot be loaded"):
        TrainerStart(tmp_path, EngineSection(), TrainerConfig(), 0)()
    assert ReplicaOptions().arguments("m", on_cpu=True)["trust_remote_code"] is False
    assert not (tmp_path / "was_run").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"prompt": "a"}\n{"prompt"', "line 2 of .* is not JSON"),
        ('{"question": "a"}', "line 1 of .* has no text under 'prompt'"),
        ('{"prompt": ""}', "has no text under 'prompt'"),
        ("[1]", "has no text under 'prompt'"),
        ("\n", "holds no prompt to train on"),
        (None, "cannot be read"),
    ],
)
def test_prompt_files_that_cannot_be_used(
    short_start: Path, tmp_path: Path, rewards: str, content: str | None, message: str
) -> None:
    file = tmp_path / "prompts.jsonl"
    if content is not None:
        file.write_text(content)
    with pytest.raises(ScenarioError, match=f"engine.task.prompts: .*{message}"):
        FileTask(file, f"{rewards}:length", short_start, max_new_tokens=4)


def test_other_settings_that_cannot_be_used(
    make_task: Callable[..., FileTask], tmp_path: Path, rewards: str
) -> None:
    with pytest.raises(ScenarioError, match=r"engine.task.max_new_tokens"):
        make_task(max_new_tokens=0)
    with pytest.raises(ScenarioError, match=r"engine.task.chat: .* has no chat template"):
        make_task(chat=True)
    with pytest.raises(ScenarioError, match=r"engine.model: .* has no tokenizer"):
        FileTask("prompts.jsonl", f"{rewards}:length", tmp_path / "none", max_new_tokens=4)


def test_the_tokenizer_of_another_model(rewards: str, short_start: Path, tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(short_start, model)
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "vocab_size": 20}))
    file = tmp_path / "p.jsonl"
    file.write_text("".join(f'{{"prompt": "zyx 98{n}"}}\n' for n in range(9)))
    with refuses("engine.model", r"has the token \d+, but the model knows 20"):
        FileTask(file, f"{rewards}:length", model, max_new_tokens=4)
