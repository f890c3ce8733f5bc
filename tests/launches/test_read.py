"""Launches of every form: what they say, where, and what is wrong with them in one sentence."""

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.launches.draft import drafted
from rollcast.simulator.launches.launched import Launched
from rollcast.simulator.launches.read import read_launch
from rollcast.simulator.stacks.releases import ANY
from rollcast.simulator.stacks.stack import all_stacks
from tests.laws import examples, scratch

VERL = "python3 -m verl.trainer.main_ppo"


def written(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def launched(folder: Path, text: str, name: str = "run.sh", **environment: str) -> Launched:
    return read_launch(written(folder, name, text), environment=environment)


def values(launch: Launched) -> dict[str, Any]:
    return {key: setting.value for key, setting in launch.settings.items()}


# The same settings in every form


def _keys(stack: str) -> list[str]:
    """Keys of a stack that hold in any run and take any number."""
    table = all_stacks()[stack].launch
    return sorted(
        theirs
        for theirs, (ours, _, key) in table.ours.items()
        if not (key.where or key.values or key.inverted)
        and table.bounds(theirs) == ANY
        and (ours.startswith("workload.") or ours == "model")
        and "-" not in theirs
    )


NUMBERS = st.integers(1, 10**6)
NAMES = st.from_regex(r"[A-Za-z][A-Za-z0-9_./-]{0,20}[A-Za-z0-9]", fullmatch=True).filter(
    lambda text: yaml.safe_load(text) == text and "//" not in text
)


def mappings(stack: str) -> st.SearchStrategy[dict[str, Any]]:
    keys = _keys(stack)
    models = [key for key in keys if all_stacks()[stack].launch.ours[key][0] == "model"]
    numbers = [key for key in keys if key not in models]
    return st.fixed_dictionaries(
        {models[0]: NAMES}, optional=dict.fromkeys(numbers, NUMBERS)
    ).filter(lambda mapping: len(mapping) > 2)


def nested(mapping: dict[str, Any]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for key, item in mapping.items():
        *above, last = key.split(".")
        here = tree
        for name in above:
            here = here.setdefault(name, {})
        here[last] = item
    return tree


def given_by(launch: Launched) -> dict[str, Any]:
    return dict(launch.raw())


@settings(max_examples=examples(30))
@given(mappings("verl"))
def test_overrides_and_yaml_say_the_same(
    tmp_path_factory: pytest.TempPathFactory, mapping: dict[str, Any]
) -> None:
    folder = scratch(tmp_path_factory)
    script = " \\\n  ".join([VERL, *(f"{key}={item}" for key, item in mapping.items())])
    command = ["python3", "-m", "verl.trainer.main_ppo"]
    several = [
        launched(folder, script + "\n"),
        launched(folder, yaml.safe_dump(nested(mapping)), "config.yaml"),
        launched(folder, json.dumps(nested(mapping)), "config.json"),
        launched(
            folder, yaml.safe_dump([f"++{k}={v}" for k, v in mapping.items()]), "overrides.yaml"
        ),
        read_launch(None, [*command, *(f"{k}={v}" for k, v in mapping.items())]),
    ]
    for launch in several:
        assert launch.stack == "verl"
        assert given_by(launch) == mapping


@settings(max_examples=examples(30))
@given(mappings("trl"))
def test_flags_python_and_yaml_say_the_same(
    tmp_path_factory: pytest.TempPathFactory, mapping: dict[str, Any]
) -> None:
    folder = scratch(tmp_path_factory)
    flags = " ".join(f"--{key} {item}" for key, item in mapping.items())
    equals = " ".join(f"--{key}={item}" for key, item in mapping.items())
    call = ", ".join(f"{key}={item!r}" for key, item in mapping.items())
    several = [
        launched(folder, f"trl grpo {flags}\n"),
        launched(folder, f"ARGS='{equals}'\naccelerate launch --num_machines 1 x/grpo.py $ARGS\n"),
        launched(folder, f"from trl import GRPOConfig\nC = GRPOConfig({call})\n", "train.py"),
        launched(folder, f"import trl\nD = dict({call})\nC = trl.GRPOConfig(**D)\n", "train.py"),
    ]
    written(folder, "recipe.yaml", yaml.safe_dump(mapping))
    several.append(launched(folder, "trl grpo --config recipe.yaml\n"))
    for launch in several:
        assert launch.stack == "trl"
        assert {k: v for k, v in given_by(launch).items() if "num_machines" not in k} == mapping


@settings(max_examples=examples(30))
@given(mappings("prime_rl"))
def test_toml_and_its_flags_say_the_same(
    tmp_path_factory: pytest.TempPathFactory, mapping: dict[str, Any]
) -> None:
    folder = scratch(tmp_path_factory)
    lines = "".join(f"{key} = {json.dumps(item)}\n" for key, item in mapping.items())
    flags = " ".join(f"--{key} {item}" for key, item in mapping.items())
    written(folder, "rl.toml", lines)
    for text in ("uv run rl @ rl.toml\n", "uv run rl @rl.toml\n", f"uv run rl {flags}\n"):
        launch = launched(folder, text)
        assert launch.stack == "prime_rl"
        assert given_by(launch) == mapping


# Places, rights, what is said twice


def test_of_a_key_that_a_command_says_twice_the_last_value_holds(tmp_path: Path) -> None:
    """As Hydra and argparse have it."""
    twice = f"{VERL} data.train_batch_size=512 \\\n  data.train_batch_size=1024\n"
    launch = launched(tmp_path, twice)
    assert values(launch)["workload.batch_groups"] == 1024
    said = (
        "data.train_batch_size is set to 512 in run.sh, line 1, and to 1024 in line 2; the last is "
        "taken"
    )
    assert said in launch.notes
    launch = read_launch(None, twice.replace("\\\n", "").split())
    assert any("512 in the command line, and then to 1024; the" in note for note in launch.notes)
    same = launched(tmp_path, twice.replace("1024", "512"))
    assert any("and in line 2" in note for note in same.notes)
    with pytest.raises(ScenarioError, match="in line 1; keep one"):
        launched(tmp_path, "seed: 1\nseed: 2\n", "config.yaml")


def test_words_that_a_script_passes_on_stand_over_its_own(tmp_path: Path) -> None:
    for words, groups in (("n=2 $@", 64), ("n=2 $@ data.train_batch_size=256", 256)):
        path = written(tmp_path, "run.sh", f"{VERL} data.train_batch_size=512 rollout.{words}\n")
        launch = read_launch(None, ["bash", str(path), "data.train_batch_size=64"])
        assert values(launch)["workload.batch_groups"] == groups
        assert any("64 in the command line" in note for note in launch.notes)
    written(tmp_path, "run.sh", f"{VERL} data.train_batch_size=512 rollout.n=2 $@\n")
    caller = written(tmp_path, "caller.sh", "bash run.sh data.train_batch_size=64\n")
    assert values(read_launch(caller))["workload.batch_groups"] == 64


@pytest.mark.parametrize(
    "call",
    [
        "docker run --gpus all -e N=16 --env=GPUS=4 image bash run.sh",
        "podman run --env N=16 -eGPUS=4 image bash -lc 'bash run.sh'",
        "sbatch --export=ALL,N=16,GPUS=4 run.sh",
        "qsub -l walltime=1:0:0 -v N=16,GPUS=4 run.sh",
    ],
)
def test_a_container_or_a_job_is_given_variables(tmp_path: Path, call: str) -> None:
    words = "actor_rollout_ref.rollout.n=$N trainer.n_gpus_per_node=$GPUS"
    written(tmp_path, "run.sh", f"{VERL} {words}\n")
    said = values(read_launch(written(tmp_path, "caller.sh", f"{call}\n")))
    assert (said["workload.group_size"], said["run.gpus_per_node"]) == (16, 4)


@pytest.mark.parametrize("stack", sorted(all_stacks()))
def test_no_key_with_a_meaning_is_called_harmless(stack: str) -> None:
    launch = all_stacks()[stack].launch
    assert not [key for key in launch.ours if launch.ignores(key)]


@pytest.mark.parametrize(
    "command",
    [
        'ray job submit --runtime-env-json="{{\\"a\\": 1}}" -- {}',
        "nohup {} > log 2>&1 &",
        "{} 2>&1 | tee log",
        "env A=1 {}",
        "A=1 PYTHONPATH=. {}",
        'srun bash -c "{}"',
        "docker exec c bash -lc '{}'",
        "torchrun --nproc_per_node 8 -m verl.trainer.main_ppo data.train_batch_size=8 rollout.n=2",
        'ssh host "cd /x && {}"',
        "f() {{ {}; }}\nf",
        "for x in 1 2; do {}; done",
        "true && {}",
        "CMD='{}'\neval $CMD",
        'CMD=({})\n"${{CMD[@]}}"',
    ],
)
def test_a_launch_is_found_behind_others(tmp_path: Path, command: str) -> None:
    full = f"{VERL} data.train_batch_size=8 rollout.n=2"
    launch = launched(tmp_path, "sleep 3\npython x.py\n" + command.format(full) + "\n")
    assert launch.stack == "verl"
    assert values(launch)["workload.batch_groups"] == 8


def test_a_command_that_calls_a_script_gives_it_arguments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path, "run.sh", f"B=${{B:-4}}\n{VERL} data.train_batch_size=$1 rollout.n=$B\n")
    monkeypatch.chdir(tmp_path)
    for words in (
        ["bash", "run.sh", "16"],
        ["./run.sh", "16"],
        ["env", "A=1", "bash", "run.sh", "16"],
    ):
        launch = read_launch(None, words, environment={"B": "8"})
        assert values(launch)["workload.batch_groups"] == 16
        assert values(launch)["workload.group_size"] == 8
        assert str(launch.settings["workload.batch_groups"].place) == "run.sh, line 2"
    with pytest.raises(ScenarioError, match=r"the command line: calls another file .*: gone\.sh"):
        read_launch(None, ["bash", "gone.sh"])


# Configurations and their parents


@pytest.mark.parametrize(
    ("words", "size", "sweep"),
    [
        ("data.train_batch_size=8,16 --multirun", 8, "data.train_batch_size=8"),
        ("-m data.train_batch_size='choice(8, 16)' algorithm.gamma=1,2", 8, "algorithm.gamma=1"),
        ("-m data.train_batch_size=8 data.train_files=[a,b]", 8, ""),
    ],
)
def test_of_a_sweep_the_first_run_is_read(
    tmp_path: Path, words: str, size: int, sweep: str
) -> None:
    launch = launched(tmp_path, f"{VERL} {words}\n")
    assert values(launch)["workload.batch_groups"] == size
    assert "multirun" not in str(launch.unknown)
    said = [note for note in launch.notes if "a sweep of several runs" in note]
    assert len(said) == bool(sweep)
    assert sweep in "".join(said)


@pytest.mark.parametrize(
    ("start", "words", "size"),
    [
        (f"{VERL} --config-path=$PWD/config --config-name=base", "+exp=small", 5),
        (f"{VERL} --config-path=$PWD/config --config-name=base", "data.x=1 +exp=big -m", 9),
        ("python train.py", "--multirun +exp=big,small", 9),
    ],
)
def test_a_group_that_a_command_adds_is_read_over_the_configuration(
    tmp_path: Path, start: str, words: str, size: int
) -> None:
    written(tmp_path, "config/base.yaml", "defaults: [_self_]\ndata: {train_batch_size: 2}\n")
    for name, its in (("small", 5), ("big", 9)):
        text = f"# @package _global_\ndata: {{train_batch_size: {its}}}\n"
        written(tmp_path, f"config/exp/{name}.yaml", text)
    main = "import hydra\nimport verl\n@hydra.main(config_path='config', config_name='base')\n"
    written(tmp_path, "train.py", f"{main}def main(config):\n    run(config)\n")
    launch = launched(tmp_path, f"{start} actor_rollout_ref.rollout.n=4 {words}\n")
    assert values(launch)["workload.batch_groups"] == size
    assert values(launch)["workload.group_size"] == 4


@pytest.mark.parametrize("script", ["ray.sub", "not_there.sh"])
def test_a_job_takes_its_command_from_a_variable(tmp_path: Path, script: str) -> None:
    """As NeMo-RL's ray.sub does; before sbatch, or set in lines of their own."""
    written(tmp_path, "grpo.yaml", "grpo: {num_prompts_per_step: 64}\n")
    command = 'COMMAND="uv run examples/run_grpo_math.py --config grpo.yaml cluster.num_nodes=$N"'
    submit = f"sbatch --nodes=$N --account=x {script}\n"
    lines = command.removeprefix('COMMAND="')[:-1]
    here = f"N=2 && read -r -d '' COMMAND <<EOF || true\nHF_HOME=$PWD {lines} \\\n $@\nEOF\n"
    for text in (
        f'N=2\n{command} \\\nMOUNTS="$PWD:$PWD" {submit}',
        f"N=2\n{command}\n{submit}",
        f"{here}COMMAND=$COMMAND \\\n{submit}",
        f"N=2\n{command.replace('uv run', 'date ; X=1 uv run')}\n{submit}",
    ):
        launch = launched(tmp_path, text)
        assert launch.stack == "nemo_rl"
        assert values(launch)["run.nodes"] == 2
        assert launch.settings["run.nodes"].place.line == 2
        assert values(launch)["workload.batch_groups"] == 64


def test_the_environment_says_whether_pytorch_extends_its_segments(tmp_path: Path) -> None:
    key = "cost.roofline.trainer.expandable_segments"
    conf = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments"
    for said, held in [
        (f"{conf}:True,max_split_size_mb:64", True),
        (f"{conf}:False", False),
    ]:
        script = f"export {said}\n{VERL} data.x=1\n"
        parts = {part.key: part.value for part in drafted(launched(tmp_path, script)).parts}
        assert parts[key] is held
    assert key not in {
        part.key for part in drafted(launched(tmp_path, f"{VERL} data.train_batch_size=8\n")).parts
    }


@pytest.mark.parametrize(
    ("told", "held"),
    [
        (r'{\"env_vars\": {\"PYTORCH_ALLOC_CONF\": \"expandable_segments:True,$X\"}}', True),
        ("[1]", None),
        (r'{\"env_vars\": 7}', None),
        (r'{\"env_vars\": {', None),
    ],
)  # fmt: skip
def test_ray_gives_a_job_variables(tmp_path: Path, told: str, held: bool | None) -> None:
    """Whatever it says, the job is read."""
    for gives in ("=", " "):
        script = f'E="{told}"\nray job submit --runtime-env-json{gives}"$E" -- {VERL} data.x=1\n'
        parts = {part.key: part.value for part in drafted(launched(tmp_path, script)).parts}
        assert parts.get("cost.roofline.trainer.expandable_segments") is held


@pytest.mark.parametrize(
    ("nodes", "gpus"),
    [
        ("localhost:2", (1, 1)),
        ("a:0,1@b:2,3", (2, 2)),
        ("a@b", (2, None)),
        ("a:0@b:0,1", (None, None)),
        ("$NODES", (None, None)),
    ],
)
def test_gpus_that_deepspeed_includes_are_counted(
    tmp_path: Path, nodes: str, gpus: tuple[int | None, int | None]
) -> None:
    launch = launched(tmp_path, f"deepspeed --include {nodes} grpo.py --num_generations 8\n")
    known = [launch.known.get(key) for key in ("run.nodes", "run.gpus_per_node")]
    assert tuple(one and one.value for one in known) == gpus


@pytest.mark.parametrize(
    ("name", "stage", "offload"),
    [
        ("zero3.json", 3, None),
        ("ds_zero2_offload.json", 2, "cpu"),
        ("configs/stage-3-offload.yml", 3, "cpu"),
    ],
)
def test_a_deepspeed_configuration_that_is_not_there_says_its_stage_by_its_name(
    tmp_path: Path, name: str, stage: int, offload: str | None
) -> None:
    below = "deepspeed.zero_optimization"
    run = f"deepspeed src/grpo.py --deepspeed gone/{name} --num_generations 4 --beta 0\n"
    script = f"import trl\nC = trl.GRPOConfig(deepspeed='gone/{name}', num_generations=4)\n"
    for launch in (launched(tmp_path, run), launched(tmp_path, script, "train.py")):
        raw = launch.raw()
        assert (raw[f"{below}.stage"], raw.get(f"{below}.offload_optimizer.device")) == (
            stage,
            offload,
        )
        assert raw.get(f"{below}.offload_param.device") == (offload if stage == 3 else None)
        assert any(f"calls gone/{name}, which is not there" in note for note in launch.notes)
    with pytest.raises(ScenarioError, match=r"calls another file that is not there: gone/ds\.json"):
        launched(tmp_path, run.replace(name, "ds.json"))


def test_a_file_that_the_launch_names_has_to_be_there(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError) as caught:
        launched(
            tmp_path, "\nuv run examples/run_grpo.py --config gone.yaml grpo.max_num_steps=1\n"
        )
    assert str(caught.value) == ("run.sh, line 2: calls another file that is not there: gone.yaml")
    shipped = f"{VERL} --config-name=ppo_trainer data.train_batch_size=8\n"
    assert values(launched(tmp_path, shipped))["workload.batch_groups"] == 8
    with pytest.raises(ScenarioError, match=r"line 1: calls another file .*here_env\.sh; .* BATCH"):
        launched(
            tmp_path,
            f"source here_env.sh\n{VERL} data.train_batch_size=$BATCH rollout.n=2\n",
        )
    with pytest.raises(ScenarioError, match=r"1: which file it calls is not known: .*: M has no v"):
        launched(tmp_path, f"source $M.sh\n{VERL} data.train_batch_size=$BATCH rollout.n=2\n")
    fixed = launched(tmp_path, f"sed -i s/a/b/ /opt/verl/trainer/main_ppo.py\n{VERL} rollout.n=3\n")
    assert values(fixed)["workload.group_size"] == 3
    unused = launched(tmp_path, f"source here_env.sh\n{VERL} data.train_batch_size=4 rollout.n=2\n")
    assert any("here_env.sh" in note for note in unused.notes)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a.b=c", "c"), ("+a.b=1", 1), ("++a.b=1e-6", 1e-6), ("a.b=[1,x]", [1, "x"]),
        ("a.b='x y'", "x y"), ("a.b=null", None), ("a.b=True", True), ('a.b="[1]"', "[1]"),
        ("a.b=[['x','y'],2]", [["x", "y"], 2]), ("a.b=-1", -1), ("a.b=", ""), ("a.b=x=y", "x=y"),
    ],
)  # fmt: skip
def test_values_of_overrides(text: str, value: Any) -> None:
    launch = read_launch(None, ["python", "-m", "verl.trainer.main_ppo", text])
    assert dict(launch.raw()) == {"a.b": value}


def test_mappings_in_overrides_have_keys_of_their_own() -> None:
    command = ["python", "-m", "verl.trainer.main_ppo", "+a={b:1,c:{d:x}}", "~a.c.d"]
    assert dict(read_launch(None, command).raw()) == {"a.b": 1}


# Python


SCRIPT = """
import argparse, os
from peft import LoraConfig
from trl import GRPOConfig, GRPOTrainer

parser = argparse.ArgumentParser()
parser.add_argument("--n", type=int, default=8)
parser.add_argument("--model", default=f"Qwen/{'Qwen3-8B'}")
parser.add_argument("--needed")
args = parser.parse_args()
TOKENS = 2 ** 10

def config():
    return GRPOConfig(
        num_generations=args.n,
        max_completion_length=TOKENS * 2 if args.n > 4 else 1,
        per_device_train_batch_size=int(os.environ.get("B", "4")),
        temperature=unknown(),
    )

if __name__ == "__main__":
    trainer = GRPOTrainer(model=args.model, args=config(), peft_config=LoraConfig(r=16))
    open("/x/there", "w")
"""


def test_a_script_of_python_is_read_and_not_run(tmp_path: Path) -> None:
    launch = launched(tmp_path, SCRIPT, "train.py")
    raw = launch.raw()
    assert launch.stack == "trl"
    assert raw["model_name_or_path"] == "Qwen/Qwen3-8B"
    assert raw["num_generations"] == 8
    assert raw["max_completion_length"] == 2048
    assert raw["per_device_train_batch_size"] == 4
    assert (raw["lora_r"], raw["use_peft"]) == (16, True)
    assert [item.key for item in launch.unresolved] == ["temperature"]
    assert str(launch.settings["workload.group_size"].place) == "train.py, line 15"
    told = launched(tmp_path, "B=2\npython train.py --n 3 --model m\n").raw()
    assert told["num_generations"] == 3
    assert told["max_completion_length"] == 1
    assert told["model_name_or_path"] == "m"


def test_a_parser_of_dataclasses_takes_what_its_configuration_says(tmp_path: Path) -> None:
    for attribute in ("model_name_or_path", "base"):
        written(tmp_path, "zero3.yaml", f"{attribute}: Qwen/Qwen3-8B\n")
        script = (
            "from trl import GRPOConfig, GRPOTrainer, ModelConfig, TrlParser\n"
            f"def main(training, model):\n    GRPOTrainer(model=model.{attribute})\n"
            "training, model = TrlParser((GRPOConfig, ModelConfig)).parse_args_and_config()\n"
            "main(training, model)\n"
        )
        written(tmp_path, "train.py", script)
        launch = launched(tmp_path, "accelerate launch train.py --config zero3.yaml\n")
        assert launch.raw()["model_name_or_path"] == "Qwen/Qwen3-8B"
        assert not launch.unresolved


def test_python_that_cannot_be_parsed_names_its_line(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match=r"^train\.py, line 2: is no Python"):
        launched(tmp_path, "import trl\nx = (\n", "train.py")
    notebook = (
        "!pip install trl\n%time\nfrom trl import GRPOConfig\nGRPOConfig(num_generations=4)\n"
    )
    assert launched(tmp_path, notebook, "train.py").raw()["num_generations"] == 4


# Folders, and which stack


def test_the_launch_of_a_folder(tmp_path: Path) -> None:
    written(tmp_path, "run.sh", f"{VERL} data.train_batch_size=8\n")
    written(tmp_path, "notes.txt", "x")
    assert read_launch(tmp_path).stack == "verl"
    written(tmp_path, "config.yaml", "data: {train_batch_size: 8}\n")
    with pytest.raises(ScenarioError, match=r"several files could be .*run\.sh, config\.yaml"):
        read_launch(tmp_path)
    hydra = tmp_path / "outputs"
    written(hydra, ".hydra/config.yaml", "data: {train_batch_size: 4}\nrollout: {n: 2}\n")
    assert values(read_launch(hydra))["workload.batch_groups"] == 4
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(ScenarioError, match="holds no script"):
        read_launch(empty)


def test_a_launch_of_no_stack_or_of_two_asks_which(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match=r"no launch of a known stack.*--stack"):
        launched(tmp_path, "echo hello\n")
    own = "import deepspeed, trl_like\nengine, *_ = deepspeed.initialize(model=m)\n"
    written(tmp_path, "grpo.py", own)
    with pytest.raises(ScenarioError, match=r"no launch of a known stack"):
        launched(tmp_path, "deepspeed grpo.py\n")  # a loop of its own
    keys = [f"+mine.key{at}={at}" for at in range(30)]  # of a fork's
    fork = f"python -m dapo.main_dapo data.train_batch_size=8 {' '.join(keys)}\n"
    assert launched(tmp_path, fork).stack == "verl"
    written(tmp_path, "grpo.py", f"import trl\n{own}")
    assert launched(tmp_path, "deepspeed grpo.py\n").stack == "trl"
    path = written(tmp_path, "c.yaml", "seed: 1\n")
    with pytest.raises(ScenarioError, match="--stack"):
        read_launch(path)
    assert read_launch(path, stack="trl").stack == "trl"
    with pytest.raises(ScenarioError, match=r"--stack: vrl is not known; did you mean verl "):
        read_launch(path, stack="vrl")


def test_a_configuration_that_is_not_known_is_not_taken_for_defaults(tmp_path: Path) -> None:
    """Of stacks whose launch is a file, and of Hydra's."""
    for script in (
        "uv run examples/run_grpo.py --config $CONFIG grpo.max_num_steps=9\n",
        "python $AT/examples/reasoning/main_grpo.py --config-path $AT --config-name $NAME\n",
    ):
        with pytest.raises(ScenarioError, match=r"run.sh, line 1: which configuration .* \$"):
            launched(tmp_path, script)
    written(tmp_path, "a.yaml", "grpo: {num_prompts_per_step: 7}\n")
    said = launched(tmp_path, "uv run examples/run_grpo.py --config $CONFIG\n", CONFIG="a.yaml")
    assert values(said)["workload.batch_groups"] == 7


# What is no launch, or a hostile one


def refused(folder: Path, text: str | bytes, name: str) -> str:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ScenarioError) as caught:
        read_launch(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


BOMB = "a: &a [1,1]\n" + "".join(
    f"{chr(98 + n)}: &{chr(98 + n)} [{','.join(['*' + chr(97 + n)] * 9)}]\n" for n in range(9)
)
HOSTILE = {
    "bomb.yaml": (BOMB, "more than 100,000 values"),
    "deep.yaml": ("[" * 5_000, "nested too deeply"),
    "self.yaml": ("a: &a [*a]\n", "levels deep"),
    "circle.yaml": ("defaults: circle.yaml\n", "call each other without end"),
    "object.yaml": ("a: !!python/object/apply:os.system ['touch there']\n", "no launch"),
    "list.yaml": ("- 1\n", "is a list"),
    "twice.toml": ("a = 1\na = 2\n", "is no TOML"),
    "digits.json": ('{"a": ' + "9" * 9_999 + "}", "too many digits"),
    "deep.toml": ("a = " + "[" * 9_999, "is nested too deeply"),
    "wide.sh": ("a\n".encode("utf-16"), "is text in UTF-16; give the launch as text in UTF-8"),
    "packed.yaml": (b"\x1f\x8b\x08\0\0", "is compressed (gzip)"),
    "deep.py": ("(" * 5_000, "is no Python"),
    "nul.sh": (b"a\nb\0b\n", "nul.sh, line 2: is no text: it holds NUL"),
    "latin.sh": (b"ok\n\xff\n", "line 2: is not text in UTF-8"),
    "doubled.sh": ("A=aa\nwhile :; do A=$A$A; done\n", "without end"),
    "calls.sh": ("f() { f; }\nf\n", "f calls itself without end"),
    "sources.sh": ("source sources.sh\n", "call each other without end"),
    "loops.sh": ("for i in {1..999}; do for j in {1..999}; do :; done; done\n", "20,000 commands"),
    "braces.sh": ("echo " + "{a,b}" * 40, "without end"),
    "open.sh": ("$(" * 5_000, "nested too deeply"),
    "pieces.sh": ("A=a\n" + "A=$A$X\nA+=b\n" * 9_999, "without end"),
    "evals.sh": ('A=\'eval "$A"\'\neval "$A"\n', "without end"),
    "words.sh": (f"{VERL} " + "a.b=1 " * 9_999, "5,000 words"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_end_in_a_sentence(tmp_path: Path, name: str) -> None:
    text, why = HOSTILE[name]
    assert why in refused(tmp_path, text, name)
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize(
    "script",
    [
        "A=" + "a" * 1_900 + "\nwhile :; do B=${A##*a*a*a*b}; done",
        "A=$((9**9**9))",
        "A=A+A\n: $((A))",
        "while :; do :; done",
        "cat <<A <<B <<C\n" * 50,
    ],
)  # fmt: skip
def test_hostile_lines_before_a_launch_do_not_hide_it(tmp_path: Path, script: str) -> None:
    with suppress(ScenarioError):
        launch = launched(tmp_path, f"{script}\n{VERL} data.train_batch_size=8\n")
        assert values(launch)["workload.batch_groups"] == 8


def test_what_is_no_plain_file_is_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.sh")
    (tmp_path / "loop.sh").symlink_to(tmp_path / "loop.sh")
    with (tmp_path / "large.sh").open("wb") as file:
        file.truncate(2 * 10**9)
    for name, why in {
        "pipe.sh": "not a regular file",
        "loop.sh": "cannot read",
        "large.sh": "too large",
        "gone.sh": "cannot read",
    }.items():
        with pytest.raises(ScenarioError, match=why):
            read_launch(tmp_path / name)
    with pytest.raises(ScenarioError, match="not a regular file"):
        read_launch(Path("/dev/zero"))
    with pytest.raises(ScenarioError, match="give a script"):
        read_launch(None)


@given(
    st.sampled_from(["c.yaml", "c.toml", "c.json", "t.py", "run.sh"]),
    st.text(max_size=60) | st.text("ab:=[]{}&*!-#'\"$\n ,.@()", max_size=60),
)
def test_any_text_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, name: str, text: str
) -> None:
    path = scratch(tmp_path_factory) / name
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    with suppress(ScenarioError):
        read_launch(path)


@given(st.lists(st.text("ab.=[]{}+~-@$:'\" 1/", max_size=12), min_size=1, max_size=5))
def test_any_command_is_read_or_refused(items: list[str]) -> None:
    with suppress(ScenarioError):
        read_launch(None, ["python", "-m", "verl.trainer.main_ppo", *items])


def test_a_program_that_is_no_stacks_is_one_of_a_stack_only_by_most_of_its_keys(
    tmp_path: Path,
) -> None:
    """A loop of somebody's own has keys of several stacks (oat: 12 of 47 are OpenRLHF's)."""
    theirs = " ".join(f"--own_{number} 1" for number in range(20))
    flags = "--pretrain Qwen/Qwen2.5-7B --zero_stage 2 --micro_train_batch_size 1 --n_samples 8"
    (tmp_path / "run.sh").write_text(f"python -m other.loop {flags} {theirs}\n")
    with pytest.raises(ScenarioError, match="openrlhf is most like it, with 3 of its 24 keys"):
        read_launch(tmp_path / "run.sh")
    assert read_launch(tmp_path / "run.sh", stack="openrlhf").stack == "openrlhf"
    (tmp_path / "run.sh").write_text(f"python -m other.loop {flags}\n")
    assert read_launch(tmp_path / "run.sh").stack == "openrlhf"


def test_a_whole_configuration_is_its_stacks_though_most_of_its_keys_are_not_read(
    tmp_path: Path,
) -> None:
    """verl writes a configuration of some 200 keys beside every run; 60 of them are read here."""
    known = (
        "actor_rollout_ref: {model: {path: Qwen/Qwen2.5-7B}, actor: {ppo_mini_batch_size: 64}, "
        "rollout: {n: 8, name: vllm}}\ndata: {train_batch_size: 128, max_response_length: 1024}\n"
    )
    (tmp_path / "config.yaml").write_text(known + "".join(f"own_{n}: 1\n" for n in range(40)))
    assert read_launch(tmp_path / "config.yaml").stack == "verl"
    (tmp_path / "config.yaml").write_text(known + "".join(f"own_{n}: 1\n" for n in range(80)))
    with pytest.raises(ScenarioError, match="verl is most like it, with 6 of its 86 keys"):
        read_launch(tmp_path / "config.yaml")
    many = nested(dict.fromkeys(list(all_stacks()["verl"].launch.ours)[:20], 1))
    many |= {f"own_{n}": 1 for n in range(400)}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(many))
    assert read_launch(tmp_path / "config.yaml").stack == "verl"


def test_a_configuration_with_few_keys_of_a_stack_may_still_be_another_loop_of_it(
    tmp_path: Path,
) -> None:
    own = "".join(f"own_{n} = 1\n" for n in range(9))
    text = "max_steps = 10\n" + own + '[model]\nname = "Qwen/Qwen3-0.6B"\n[data]\nname = "x"\n'
    (tmp_path / "sft.toml").write_text(text)
    with pytest.raises(ScenarioError, match=r"data\.name: such a launch trains on given answers"):
        read_launch(tmp_path / "sft.toml")
