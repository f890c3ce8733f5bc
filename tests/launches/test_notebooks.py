"""Launches in notebooks: Jupyter's and marimo's, and Unsloth's trainer, which most of them have."""

import json
from pathlib import Path

import pytest

from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.launches.draft import Asked, completed, drafted
from rollcast.simulator.launches.parts import given
from rollcast.simulator.launches.read import read_launch
from rollcast.simulator.stacks.settings import value

MODEL = """from unsloth import FastLanguageModel
model, tokenizer = FastLanguageModel.from_pretrained(
    model_name="unsloth/Llama-3.1-8B-Instruct", fast_inference=True, gpu_memory_utilization=0.8
)
model = FastLanguageModel.get_peft_model(model, r=32)
"""
TRAINING = """from trl import GRPOConfig
args = GRPOConfig(
    num_generations=4, per_device_train_batch_size=4,
    gradient_accumulation_steps=3, max_completion_length=1024,
)
"""
CELLS = (
    ("markdown", "# A title that is no Python"),
    ("code", "!pip install unsloth \\\n    vllm\n%env A=1\n"),
    ("code", "%%bash\nexport x=1\n"),
    ("code", MODEL),
    ("code", "this is no Python (\n"),
    ("code", TRAINING),
)


def notebook(folder: Path, cells: tuple[tuple[str, str], ...] = CELLS, indent: int = 1) -> Path:
    path = folder / "run.ipynb"
    content = [
        {"cell_type": kind, "metadata": {}, "source": text.splitlines(keepends=True)}
        for kind, text in cells
    ]
    path.write_text(json.dumps({"cells": content, "nbformat": 4}, indent=indent or None))
    return path


@pytest.mark.parametrize("indent", [1, 0])
def test_the_code_of_a_notebook_is_read_with_its_lines(tmp_path: Path, indent: int) -> None:
    path = notebook(tmp_path, indent=indent)
    launch = read_launch(tmp_path)  # the only launch of its folder
    group = launch.settings["workload.group_size"]
    assert (launch.stack, launch.in_python, group.value) == ("trl", True, 4)
    if indent:
        assert "num_generations" in path.read_text().splitlines()[group.place.line - 1]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "is no notebook: it is no JSON"),
        ("[]", "is no notebook: it has no cells"),
        ('{"cells": [1, {"cell_type": "code"}, {"cell_type": "code", "source": 2}]}', "no launch"),
    ],
)
def test_what_is_no_notebook_is_told(tmp_path: Path, text: str, why: str) -> None:
    (tmp_path / "run.ipynb").write_text(text)
    with pytest.raises(ScenarioError, match=why):
        read_launch(tmp_path / "run.ipynb")


def test_a_line_for_the_shell_may_be_the_launch(tmp_path: Path) -> None:
    lines = (
        'n = 4\n!echo "not closed\n',
        "!B=1 python3 -m verl.trainer.main_ppo data.train_batch_size=256 \\\n"
        "  actor_rollout_ref.rollout.n={n} \\\n data.max_response_length=$((2 * 128))\n",
    )
    path = notebook(tmp_path, tuple(("code", line) for line in lines))
    launch = read_launch(path, environment={"n": "8"})
    group = launch.settings["workload.group_size"]
    assert (launch.stack, group.value) == ("verl", 8)
    assert "rollout.n" in path.read_text().splitlines()[group.place.line - 1]
    assert launch.settings["workload.max_new_tokens"].value == 256
    assert [item.text for item in read_launch(path).unresolved] == ["${n}"]


def test_cells_of_marimo_share_their_variables(tmp_path: Path) -> None:
    cells = ["group = 6", "from trl import GRPOConfig\nargs = GRPOConfig(num_generations=group)"]
    body = "".join(
        f"@app.cell{'(hide_code=True)' * n}\ndef _():\n    " + cell.replace("\n", "\n    ") + "\n\n"
        for n, cell in enumerate(cells)
    )
    (tmp_path / "run.py").write_text(f"import marimo\napp = marimo.App()\n\n{body}")
    launch = read_launch(tmp_path / "run.py")
    assert value(launch.settings, "workload.group_size") == 6


def test_unsloths_engine_and_trainer_share_gpu_and_weights(tmp_path: Path) -> None:
    """With defaults of its own, whatever release of TRL is there."""
    launch = read_launch(notebook(tmp_path))
    held = completed(launch, 1)
    expected = {
        "run.mode": "colocate",
        "run.optimizer": "adamw_8bit",
        "run.kl_coefficient": 0.001,
        "run.quantized_base": "4bit",
        "run.recompute": "full",
        "workload.batch_groups": 3,
        "cluster.trainer_gpus": 1,
    }
    assert {key: value(held, key) for key in expected} == expected
    parts = {
        part.key: part.value
        for part in drafted(launch, Asked(gpus=1, parts=given(None, "a100-80gb"))).parts
    }
    assert parts["cluster.placement"] == "colocated"
    assert parts["cost.roofline.trainer.base_bits"] == 4
    assert parts["cost.roofline.kv_memory_utilization"] == 0.8
    assert parts["cost.roofline.shares_weights"] is True
    assert parts["cost.roofline.merges_adapters"] is False


@pytest.mark.parametrize(
    ("first", "how"),
    [
        ("", "none"),
        ('os.environ["UNSLOTH_VLLM_STANDBY"] = "1"', "discard"),
        ('os.environ["UNSLOTH_VLLM_STANDBY"] = "0"', "none"),
        ('os.environ.setdefault("UNSLOTH_VLLM_STANDBY", "1")', "discard"),
        (
            'os.environ["ON"] = "1"\nos.environ["UNSLOTH_VLLM_STANDBY"] = os.environ["ON"]',
            "discard",
        ),
        ('os.environ["ON"] = "1"\nos.environ.setdefault("ON", "0")', "none"),
    ],
)
def test_unsloths_engine_sleeps_where_a_variable_says_so(
    first: str, how: str, tmp_path: Path
) -> None:
    """UNSLOTH_VLLM_STANDBY, which scripts set before they import it."""
    (tmp_path / "run.py").write_text(f"import os\n{first}\n{MODEL}{TRAINING}")
    asks = Asked(gpus=1, parts=given(None, "a100-80gb"))
    parts = drafted(read_launch(tmp_path / "run.py"), asks).parts
    assert {part.key: part.value for part in parts}["cost.roofline.engine_sleep"] == how


def test_a_variable_that_may_not_be_set_is_not_read(tmp_path: Path) -> None:
    """Where a script sets it in one of two ways, of which nobody knows which is taken."""
    script = 'import os\nif input():\n    os.environ["GROUP"] = "16"\n'
    training = TRAINING.replace("generations=4", 'generations=int(os.environ.get("GROUP", "4"))')
    (tmp_path / "run.py").write_text(f"{script}{MODEL}{training}")
    launch = read_launch(tmp_path / "run.py")
    assert value(launch.settings, "workload.group_size") == 4


@pytest.mark.parametrize(
    ("words", "own", "how"),
    [
        ("python run.py", "", "none"),
        ("UNSLOTH_VLLM_STANDBY=1 python run.py", "", "discard"),
        ("export UNSLOTH_VLLM_STANDBY=1\npython run.py", "", "discard"),
        ("UNSLOTH_VLLM_STANDBY=0 python run.py", "", "none"),
        (
            "UNSLOTH_VLLM_STANDBY=1 python run.py",
            'os.environ["UNSLOTH_VLLM_STANDBY"] = "0"',
            "none",
        ),
        (
            "UNSLOTH_VLLM_STANDBY=1 python run.py",
            'os.environ.setdefault("UNSLOTH_VLLM_STANDBY", "0")',
            "discard",
        ),
    ],
)
def test_unsloths_engine_sleeps_where_the_shell_says_so(
    words: str, own: str, how: str, tmp_path: Path
) -> None:
    """unsloth/models/llama.py reads UNSLOTH_VLLM_STANDBY of its process, wherever it is set."""
    (tmp_path / "run.py").write_text(f"import os\n{own}\n{MODEL}{TRAINING}")
    (tmp_path / "run.sh").write_text(words + "\n")
    asks = Asked(gpus=1, parts=given(None, "a100-80gb"))
    parts = drafted(read_launch(tmp_path / "run.sh"), asks).parts
    assert {part.key: part.value for part in parts}["cost.roofline.engine_sleep"] == how
