"""Launchers in Python that put together a command: read as the same command in shell."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.launches.launched import Launched
from rollcast.simulator.launches.read import read_launch
from tests.laws import examples, scratch

FLAGS = {
    "hf-checkpoint": st.sampled_from(["/m/Qwen3-4B", "Qwen/Qwen3-8B"]),
    "rollout-batch-size": st.integers(1, 512),
    "n-samples-per-prompt": st.integers(2, 16),
    "rollout-max-response-len": st.integers(1, 32768),
    "entropy-coef": st.sampled_from([0.0, 0.01]),
    "colocate": st.just(True),
    "prompt-data": st.sampled_from(["'/d/a b.jsonl'", "/d/x.jsonl"]),
}


def launched(folder: Path, text: str, name: str = "run.py", **environment: str) -> Launched:
    (folder / name).write_text(text, encoding="utf-8")
    return read_launch(folder / name, environment=environment)


def words(mapping: dict[str, Any]) -> list[str]:
    return [f"--{k}" if v is True else f"--{k} {v}" for k, v in mapping.items()]


@settings(max_examples=examples(20))
@given(st.fixed_dictionaries(FLAGS), st.permutations(list(FLAGS)))
def test_every_way_to_put_flags_together_says_the_same(
    tmp_path_factory: pytest.TempPathFactory, mapping: dict[str, Any], order: list[str]
) -> None:
    folder = scratch(tmp_path_factory)
    lines = words({key: mapping[key] for key in order})
    parts = " ".join(f'"{line} "' for line in lines)
    said = "\n".join(f'    "{line} "' for line in lines)
    items = [word.strip("'") for line in lines for word in line.split(" ", 1)]
    use = "import miles.utils.external_utils.command_utils as U\n"
    wanted = dict(launched(folder, f"python3 train.py {' '.join(lines)}\n", "run.sh").raw())
    assert len(wanted) == len(FLAGS)
    for text in (
        f"{use}U.execute_train(train_args=(\n{said}\n), num_gpus_per_node=8)\n",
        f"{use}A = {parts}\nB = f'{{A}} '\nU.execute_train(train_args=B)\n",
        f"{use}def execute(a=''):\n    a += {parts}\n    U.execute_train(a)\nexecute()\n",
        f"import subprocess\nsubprocess.run(['python3', 'train.py', *{items!r}], check=True)\n",
        f"import subprocess as s\nC = ['python3', 'train.py']\nC += {items!r}\nC.append('--x')\n"
        "import subprocess\nsubprocess.check_call(C)\n",
        f'import os\nos.system(f"cd /x && python3 train.py " {parts})\n',
        f"import os\nA = {lines!r}\nos.system('python3 train.py ' + ' '.join(A))\n",
        f'import shlex, subprocess\nC = """python3 train.py\n{chr(10).join(lines)}\n"""\n'
        "subprocess.Popen(shlex.split(C))\n",
    ):
        launch = launched(folder, text)
        assert launch.stack == "slime"
        assert {k: v for k, v in launch.raw().items() if k != "x"} == wanted, text


SCRIPT = """\
from dataclasses import dataclass, field
import os
import typer
import miles.utils.external_utils.command_utils as U

@dataclass(frozen=True)
class Recipe:
    cap: int
    tis: bool = False

RECIPES = {"small": Recipe(cap=4096), "large": Recipe(8192, tis=True)}

@dataclass
class Args(U.ExecuteTrainConfig):
    model_name: str = "Qwen3-4B"
    size: str = "small"
    gpus: int | None = None
    hardware: str = "H100"
    steps: int = field(default_factory=lambda: int(os.environ.get("STEPS", "100")))

    def __post_init__(self):
        self.gpus = self.gpus or U.NUM_GPUS_OF_HARDWARE[self.hardware]

    @property
    def recipe(self):
        return RECIPES[self.size]

def execute(args: Args):
    rollout = (
        f"--hf-checkpoint /models/{args.model_name} "
        "--rollout-batch-size 32 "
        # "--n-samples-per-prompt 1 "
        "--n-samples-per-prompt 8 "
        f"--rollout-max-response-len {args.recipe.cap} --num-rollout {args.steps} "
    )
    match (args.hardware, args.num_nodes):
        case ("H100" | "H200", 1):
            perf = "--tensor-model-parallel-size 2 "
        case _:
            perf = "--tensor-model-parallel-size 1 "
    if args.recipe.tis:
        perf += "--use-kl-loss "
    for name, value in {"context-parallel-size": 2}.items():
        perf += f"--{name} {value} "
    U.execute_train(
        train_args=f"{rollout} {U.get_default_wandb_args(__file__)} {perf} "
        f"--actor-num-nodes {args.num_nodes} --actor-num-gpus-per-node {args.gpus} ",
        train_script="train_async.py",
    )

@U.dataclass_cli
def main(args: Args):
    execute(args)

typer.run(main)
"""


def test_a_launcher_is_read_with_its_arguments_and_lines(tmp_path: Path) -> None:
    launch = launched(tmp_path, SCRIPT)
    found = {key: setting.value for key, setting in launch.settings.items()}
    assert launch.entry == "train_async.py"
    assert found["run.asynchronous"] is True
    assert found["model"] == "/models/Qwen3-4B"
    assert (found["workload.batch_groups"], found["workload.group_size"]) == (32, 8)
    assert (found["workload.max_new_tokens"], found["run.steps"]) == (4096, 100)
    assert found["cluster.trainer_gpus"] == 8
    assert found["cost.roofline.trainer.tensor_parallel"] == 2
    assert found["cost.roofline.trainer.context_parallel"] == 2
    assert "run.kl_in_loss" not in found
    at = SCRIPT.split("\n").index('        "--n-samples-per-prompt 8 "') + 1
    assert str(launch.settings["workload.group_size"].place) == f"run.py, line {at}"
    assert any("get_default_wandb_args" in note for note in launch.notes)

    (tmp_path / "go.sh").write_text(
        "python run.py --size large --num-nodes=4 --hardware GB200\n", encoding="utf-8"
    )
    launch = read_launch(tmp_path / "go.sh", environment={"STEPS": "7"})
    found = {key: setting.value for key, setting in launch.settings.items()}
    assert (found["workload.max_new_tokens"], found["run.steps"]) == (8192, 7)
    assert found["cluster.trainer_gpus"] == 16
    assert found["cost.roofline.trainer.tensor_parallel"] == 1
    assert found["run.kl_in_loss"] is True


def test_what_a_condition_adds_is_open_and_the_rest_is_known(tmp_path: Path) -> None:
    script = (
        "import torch, slime.utils.external_utils.command_utils as U\n"
        "A = '--rollout-batch-size 8 '\n"
        "if torch.cuda.is_available():\n    A += '--colocate --n-samples-per-prompt 4 '\n"
        "else:\n    raise RuntimeError\n"
        "if torch.cuda.device_count() > 4:\n    A += '--use-dynamic-batch-size '\n"
        "A += f'--num-rollout {U.steps()} --hf-checkpoint {U.root()}/Qwen3-4B '\n"
        "U.execute_train(train_args=A, num_gpus_per_node=8)\n"
    )
    launch = launched(tmp_path, script)
    raw = launch.raw()
    assert raw["hf-checkpoint"] == "{U.root()}/Qwen3-4B"
    assert (raw["rollout-batch-size"], raw["n-samples-per-prompt"]) == (8, 4)  # who raises, stops
    assert {item.key for item in launch.unresolved} == {"use-dynamic-batch-size", "num-rollout"}
    assert not any("whether it is launched" in note for note in launch.notes)
    last = script.index("U.execute_train")
    doubted = f"{script[:last]}if U.ready():\n    {script[last:]}"
    notes = launched(tmp_path, doubted).notes
    assert any("whether it is launched" in note and "line 11" in note for note in notes)


@pytest.mark.parametrize(
    "body",
    [
        "A = '--a 1 '\nfor i in range(1000):\n    A = A + A\nos.system('python3 train.py ' + A)",
        "C = ['--a']\nfor i in range(900):\n    C = C + C\nsubprocess.run(C)",
        "def f(x):\n    f(x)\n    f(x)\n    f(x)\nf(1)",
        "import re\nre.search('(a+)+$', 'a' * 100)",
        "x = [i for i in range(1000) for j in range(1000)]",
        "while True:\n    A = '--a 1'",
        "class A(A): pass\nA().b.c(d=A())",
        "'--a'.join(range(10**9))\nx = 'ab' * 10**9\nf'{1:{\"9\" * 9}}'",
        "f'{1:999999999}'",
    ],
)
def test_hostile_scripts_end(tmp_path: Path, body: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        launched(tmp_path, f"import os, subprocess\n{body}\n")
    assert "run.py" in str(caught.value)


READS = {
    "a function": "def read(path):\n    with open(path) as f:\n        return yaml.safe_load(f)\n"
    "C = read(args.config)\n",
    "at once": "C = yaml.load(open(args.config), Loader=yaml.FullLoader)\n",
    "a text": "C = yaml.safe_load(Path(args.config).read_text())\n",
    "a path": "R = Path(__file__).resolve().parents[1]\n"
    "C = yaml.safe_load(open(R / 'conf' / 'a.yaml'))\n",
    "omegaconf": "C = OmegaConf.to_container(OmegaConf.load(args.config), resolve=True)\n",
}


@pytest.mark.parametrize("reads", READS)
def test_a_configuration_that_a_script_reads_is_read(tmp_path: Path, reads: str) -> None:
    """Its wrappers of the model, too, whose own name stays."""
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "a.yaml").write_text(
        "model: {name: Qwen/Qwen3-8B}\ngrpo: {num_generations: 6}\nlora: 16\n"
    )
    start = (
        "import argparse, yaml\nfrom trl import GRPOConfig, GRPOTrainer\n"
        "parser = argparse.ArgumentParser()\n"
        'parser.add_argument("--config", default="conf/a.yaml")\nargs = parser.parse_args()\n'
    )
    rest = (
        'model = AutoModelForCausalLM.from_pretrained(C["model"]["name"])\n'
        "model = prepare_model_for_kbit_training(model).to('cuda')\n"
        'model = get_peft_model(model, LoraConfig(r=C.get("lora", 8)))\n'
        "GRPOTrainer(model=model, args=GRPOConfig(**C['grpo'], max_completion_length=C['gone']))\n"
    )
    launch = launched(tmp_path, start + READS[reads] + rest)
    assert launch.settings["model"].value == "Qwen/Qwen3-8B"
    assert launch.settings["workload.group_size"].value == 6
    assert launch.settings["run.lora_rank"].value == 16
    assert [item.key for item in launch.unresolved] == ["max_completion_length"]
    (tmp_path / "conf" / "a.yaml").write_text("- a list\n")
    left = launched(tmp_path, start + READS[reads] + rest).unresolved
    asked = {item.key: item.why for item in left}
    assert asked["model_name_or_path"].endswith("conf/a.yaml is not read here")
