"""Launches in manifests of jobs: SkyPilot, Kubernetes, Ray's operator, dstack."""

from pathlib import Path

import pytest

from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.launches.launched import Launched
from rollcast.simulator.launches.read import read_launch

VERL = (
    "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo data.train_batch_size=128 "
    "actor_rollout_ref.model.path=Qwen/Qwen3-8B actor_rollout_ref.rollout.n=16"
)
SKY = f"""\
resources:
  accelerators: H100:8
num_nodes: 2
envs:
  TOKENS: 2048
setup: |
  pip install verl
run: |
  if [ "$SKYPILOT_NODE_RANK" == "0" ]; then
    {VERL} data.max_response_length=$TOKENS \\
      trainer.n_gpus_per_node=$SKYPILOT_NUM_GPUS_PER_NODE trainer.nnodes=$SKYPILOT_NUM_NODES
  fi
"""
KUBERNETES = f"""\
apiVersion: v1
kind: Service
metadata: {{name: rewards}}
---
apiVersion: batch/v1
kind: Job
spec:
  containers:
    - image: verlai/verl
      env: [{{name: TOKENS, value: "2048"}}]
      resources: {{limits: {{nvidia.com/gpu: 8}}}}
      command: [bash, -c]
      args:
        - {VERL} data.max_response_length=$TOKENS trainer.n_gpus_per_node=8 trainer.nnodes=2
"""
RAY = f"""\
kind: RayJob
spec:
  entrypoint: {VERL} data.max_response_length=2048 trainer.n_gpus_per_node=8 trainer.nnodes=2
"""
DSTACK = f"""\
type: task
nodes: 2
env:
  - TOKENS=2048
commands:
  - pip install verl
  - {VERL} data.max_response_length=$TOKENS trainer.n_gpus_per_node=8 trainer.nnodes=2
resources:
  gpu: H100:8
"""


def read(folder: Path, text: str) -> Launched:
    file = folder / "job.yaml"
    file.write_text(text)
    return read_launch(file)


@pytest.mark.parametrize(
    ("text", "line", "gpu"),
    [(SKY, 10, "h100-sxm"), (KUBERNETES, 14, None), (RAY, 3, None), (DSTACK, 7, "h100-sxm")],
)
def test_the_command_of_a_manifest_is_its_launch(
    tmp_path: Path, text: str, line: int, gpu: str | None
) -> None:
    launch = read(tmp_path, text)
    assert launch.stack == "verl"
    held = {key: one.value for key, one in launch.settings.items()}
    expected = {"workload.group_size": 16, "workload.batch_groups": 128, "model": "Qwen/Qwen3-8B"}
    expected |= {"workload.max_new_tokens": 2048, "run.nodes": 2, "run.gpus_per_node": 8}
    assert {key: held[key] for key in expected} == expected
    assert held.get("gpu") == gpu
    assert str(launch.settings["workload.group_size"].place) == f"job.yaml, line {line}"


@pytest.mark.parametrize(
    "variables",
    [
        "env_vars: {VLLM_USE_V1: '0'}\n",
        "runtimeEnvYAML: |\n    working_dir: .\n    env_vars:\n      VLLM_USE_V1: '0'\n",
    ],
)
def test_a_ray_job_says_the_variables_of_its_runtime_environment(
    tmp_path: Path, variables: str
) -> None:
    launch = read(tmp_path, RAY.replace("spec:\n", f"spec:\n  {variables}"))
    assert str(launch.settings["run.engine_v1"].value) == "0"


def test_gpus_that_the_launch_does_not_say_are_the_manifest_s(tmp_path: Path) -> None:
    command = "accelerate launch -m trl.scripts.grpo --model_name_or_path m --num_generations 4"
    launch = read(
        tmp_path, f"num_nodes: 3\nresources: {{accelerators: A100-80GB:4}}\nrun: {command}"
    )
    assert launch.stack == "trl"
    keys = ("run.nodes", "run.gpus_per_node", "gpu")
    assert [launch.settings[key].value for key in keys] == [3, 4, "a100-80gb"]


def test_manifests_without_a_launch_are_told_as_such(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match=r"job.yaml: no launch of a known stack"):
        read(tmp_path, "kind: Job\nspec: {command: [bash, -c, 'echo a']}\n")
    with pytest.raises(ScenarioError, match=r"job.yaml, line 2: is no shell script"):
        read(tmp_path, f"run: |\n  {VERL} 'x\n")
    with pytest.raises(ScenarioError, match=r"job.yaml, line 1: calls another file .*: train.sh"):
        read(tmp_path, "run: bash train.sh\n")
    bomb = "a: &a [x, x]\n" + "".join(
        f"{name}: &{name} [*{before}, *{before}]\n"
        for before, name in zip("abcdefghijklmnopqrstuv", "bcdefghijklmnopqrstuvw", strict=True)
    )
    with pytest.raises(ScenarioError, match=r"job\.yaml"):
        read(tmp_path, f"{bomb}run: *w\n")


def test_a_configuration_that_holds_a_command_stays_one(tmp_path: Path) -> None:
    text = "data: {train_batch_size: 64}\nactor_rollout_ref: {rollout: {n: 8, name: vllm}}\n"
    text += "trainer: {command: make reward, run: nothing.sh, nnodes: 1}\n"
    assert read(tmp_path, text).settings["workload.group_size"].value == 8
