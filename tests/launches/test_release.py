"""The release that a launch tells, and the defaults that hold then."""

from pathlib import Path

import pytest

from rollcast.simulator.cli.launching import LaunchOptions, asked
from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.launches.launched import Launched
from rollcast.simulator.launches.read import read_launch
from rollcast.simulator.stacks.stack import all_stacks

RUN = "python3 -m verl.trainer.main_ppo data.train_batch_size=8 actor_rollout_ref.rollout.n=4"


def launched(folder: Path, text: str, **beside: str) -> Launched:
    (folder / ".git").mkdir()
    for name, content in {"run.sh": text, **beside}.items():
        path = folder / name.replace("__", "/").replace("_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
    return read_launch(folder / "run.sh")


@pytest.mark.parametrize(
    ("line", "release"),
    [
        ("pip install verl==0.5.0", "0.5.0"),
        ("uv pip install 'verl[vllm,gpu] == 0.4.1'", "0.4.1"),
        ("pip install git+https://github.com/volcengine/verl.git@v0.6.0", "0.6.0"),
        ("git clone -b v0.3.1 https://github.com/volcengine/verl", "0.3.1"),
        ("# docker run verlai/verl:app-verl0.5-sglang0.4.9", "0.5"),
        ("docker run whatcanyousee/verl:v0.4 true", "0.4"),
        ("pip install 'verl>=0.5.0' vllm==0.8.4 my-verl==0.2.0", None),
        ("docker run nvcr.io/nvidia/pytorch:24.08-py3 overl1.2.3", None),
    ],
)
def test_a_pin_or_an_image_tells_it(tmp_path: Path, line: str, release: str | None) -> None:
    launch = launched(tmp_path, f"{line}\n{RUN}\n")
    assert launch.release == release
    if release is not None:
        assert f"defaults of verl {release}, as run.sh, line 1 says" in launch.notes
    old = release is not None and release < "0.9"
    assert launch.known["engine.max_seqs"].value == (1024 if old else 256)


@pytest.mark.parametrize(
    ("release", "text", "beside", "engine"),
    [
        ("0.5", "pip install vllm==0.8.4", "", None),  # as verl 0.5 is priced
        ("0.9", "pip install vllm==0.8.4", "vllm==0.19.1", "vllm-0.8"),
        ("0.9", "docker run verlai/verl:vllm017.latest", "", None),
        ("0.9", "", "torch\nvllm==0.19.1", "vllm-0.19"),
        ("0.9", "", "vllm>=0.8.2", None),
        ("0.5", "", "vllm[audio]>=0.27", "vllm-0.26"),
        ("0.9", "pip install vllm==0.6.3", "", "vllm-0.8-v0"),
        ("0.9", "pip install vllm==0.5.4", "", "vllm-0.5"),
        ("0.9", "pip install vllm==0.7.3\nexport VLLM_USE_V1=1", "", "vllm-0.8"),
        ("0.9", "pip install vllm==0.8.4\nexport VLLM_USE_V1=0", "", "vllm-0.8-v0"),
        ("0.9", "export VLLM_USE_V1=0", "", "vllm-0.8-v0"),
        ("0.9", "export VLLM_USE_V1=0\npip install vllm==0.12.0", "", None),
    ],
)
def test_the_engine_is_of_the_release_that_a_launch_tells(
    tmp_path: Path, release: str, text: str, beside: str, engine: str | None
) -> None:
    model = "actor_rollout_ref.model.path=Qwen/Qwen3-8B"
    launched(tmp_path, f"{text}\n{RUN} {model}\n", requirements_txt=beside)
    found = asked(tmp_path / "run.sh", LaunchOptions("h100-sxm", stack=f"verl-{release}"))
    parts = {part.key: part for part in found.parts}
    said = parts.get("cost.roofline.engine")
    assert (said and said.value) == engine
    (tmp_path / "setup.py").write_text("x = ['vllm==0.6.3']", "utf-8")  # files that differ
    if beside.startswith("torch"):
        assert read_launch(tmp_path / "run.sh").known.get("run.engine_release") is None


def test_what_lies_beside_a_launch_tells_it(tmp_path: Path) -> None:
    launch = launched(tmp_path, f"{RUN}\n", requirements_txt="torch\nverl==0.5.0\n")
    assert (launch.release, launch.told) == (
        "0.5.0",
        "defaults of verl 0.5.0, as requirements.txt, line 2 says",
    )
    sources = tmp_path / "verl" / "version"
    sources.mkdir(parents=True)
    (sources / "version").write_text("0.3.1.dev\n", encoding="utf-8")
    assert read_launch(tmp_path / "run.sh").release == "0.3.1"  # before what is installed beside
    assert read_launch(tmp_path / "run.sh").files == (tmp_path / "run.sh",)
    far = tmp_path / "examples" / "fork" / "run.sh"  # where the script goes before it starts
    for folder in ("examples/fork", "fork/verl/version"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "fork" / "verl" / "version" / "version").write_text("0.2.0", encoding="utf-8")
    far.write_text(f"cd fork\n{RUN}\n", encoding="utf-8")
    assert read_launch(far).release == "0.2.0"


def test_a_project_is_the_stack_by_its_name_alone(tmp_path: Path) -> None:
    config = "actor: {path: m}\ngconfig: {n_samples: 2}\ntrain_dataset: {batch_size: 4}\n"
    (tmp_path / "config.yaml").write_text(config, encoding="utf-8")
    project = '[tool.x]\nversion = "9.9"\n[project]\nname = "{}"\nreadme = "a"\nversion = "1.0.4"\n'
    for name, release in (("areal", "1.0.4"), ("mine", None)):
        (tmp_path / "pyproject.toml").write_text(project.format(name), encoding="utf-8")
        assert read_launch(tmp_path / "config.yaml", stack="areal").release == release
    (tmp_path / "areal").mkdir()
    (tmp_path / "areal/version.py").write_text('__version__ = "0.3.4"\n', encoding="utf-8")
    assert read_launch(tmp_path / "config.yaml", stack="areal").release == "0.3.4"


def test_keys_tell_a_range_and_a_release_without_them_is_not_believed(tmp_path: Path) -> None:
    table = all_stacks()["verl"].launch
    new = "algorithm.rollout_correction.bypass_mode"
    since = table.bounds(new).since
    launch = launched(tmp_path, f"{RUN} {new}=True\n")
    assert launch.release is None
    assert launch.told.startswith(f"defaults of the newest verl: {new} tells {since} or newer; ")
    (tmp_path / "run.sh").write_text(f"pip install verl==0.3.0\n{RUN} {new}=True\n", "utf-8")
    launch = read_launch(tmp_path / "run.sh")
    assert launch.release is None
    assert launch.told.startswith("run.sh, line 1 says verl 0.3.0, which has no algorithm.rollout")
    old = "actor_rollout_ref.actor.fsdp_config.grad_offload"
    (tmp_path / "run.sh").write_text(f"{RUN} {old}=True\n", "utf-8")
    launch = read_launch(tmp_path / "run.sh")
    until = table.bounds(old).until
    assert launch.told.startswith(f"defaults of verl before {until}, which has no {old} any more")
    assert launch.known["engine.max_seqs"].value == 1024


def test_a_key_of_every_release_speaks_for_none(tmp_path: Path) -> None:
    """verl 0.1 has it, too: ppo_trainer.yaml, load_format: dummy_dtensor."""
    text = f"{RUN} actor_rollout_ref.rollout.load_format=dummy_dtensor\n"
    assert launched(tmp_path, text, verl__version__version="0.2.0\n").release == "0.2.0"


def test_defaults_that_hang_on_a_release_that_is_not_told_are_named(tmp_path: Path) -> None:
    launch = launched(tmp_path, f"{RUN}\n")
    seqs = "actor_rollout_ref.rollout.max_num_seqs"
    eager = "actor_rollout_ref.rollout.enforce_eager"
    assert launch.told.startswith("the release of verl is not told; ")
    assert f"{seqs} is 256 (1024 before 0.9)" in launch.told
    assert f"{eager} is False (True before 0.6)" in launch.told
    assert launch.told.endswith("; give --stack verl-RELEASE")
    assert launch.notes == (launch.told,)
    (tmp_path / "run.sh").write_text(f"{RUN} {seqs}=64 {eager}=True\n", "utf-8")
    told = read_launch(tmp_path / "run.sh").told  # what the launch says depends on no release
    assert seqs not in told
    assert eager not in told
    (tmp_path / "slime.sh").write_text(
        "python3 train.py --rollout-batch-size 4 --rollout-max-response-len 64"
    )
    told = read_launch(tmp_path / "slime.sh", stack="slime").told
    assert "; 1 default depends on it; " in told  # for what it does slime has no setting


def test_the_user_says_it_over_the_launch(tmp_path: Path) -> None:
    more = "actor_rollout_ref.model.path=Qwen/Qwen3-8B data.max_response_length=64"
    launched(tmp_path, f"pip install verl==0.9.0\n{RUN} {more}\n")
    for stack, release, seqs in ((None, "0.9.0", 256), ("verl-0.5", "0.5", 1024)):
        found = asked(tmp_path / "run.sh", LaunchOptions("h100-sxm", stack=stack))
        assert found.launch.release == release
        assert found.value("engine.max_seqs") == seqs
        assert any("verl 0.9.0" in note for note in found.launch.notes) == (stack is None)
    found = asked(tmp_path / "run.sh", LaunchOptions("h100-sxm", stack="verl-99.1"))
    assert found.launch.notes[0].startswith("verl 99.1 is newer than any that was read (0.")


@pytest.mark.parametrize(
    ("release", "flag", "fused"),
    [
        ("1.14.0", "", False),
        ("1.14.0", "--use_liger_kernel true", True),
        ("1.15.0", "", True),
        ("1.15.0", "--use_liger_kernel false", True),
    ],
)
def test_trl_has_no_whole_logits_since_1_15(
    tmp_path: Path, release: str, flag: str, fused: bool
) -> None:
    launch = launched(tmp_path, f"pip install trl=={release}\ntrl grpo --beta 0.1 {flag}\n")
    assert launch.known["run.fused_head"].value is fused


@pytest.mark.parametrize(
    ("flags", "mode"),
    [
        ("", "colocate"),
        ("--max_prompt_length 256", "server"),  # of GRPOConfig up to 0.27
        ("--use_liger_loss true", "server"),  # of 0.17 to 0.27
        ("--max_prompt_length 256 --max_tool_calling_iterations 3", "server"),
    ],
)
def test_keys_of_trl_that_are_gone_tell_an_older_release(
    tmp_path: Path, flags: str, mode: str
) -> None:
    text = f"torchrun --nproc_per_node 6 -m trl.scripts.grpo --use_vllm --num_generations 8 {flags}"
    launch = launched(tmp_path, f"{text}\n")
    assert launch.known["run.mode"].value == mode
    assert any("before 0.28, which has no" in note for note in launch.notes) is (mode == "server")


def test_gpus_of_a_server_stand_beside_the_trainers(tmp_path: Path) -> None:
    launched(
        tmp_path,
        "torchrun --nproc_per_node 6 -m trl.scripts.grpo --use_vllm --max_prompt_length 99 "
        "--num_generations 6 --per_device_train_batch_size 2 --model_name_or_path Qwen/Qwen3-8B\n",
    )
    with pytest.raises(ScenarioError, match="how many GPUs beside the trainer's 6; give --gpus"):
        asked(tmp_path / "run.sh", LaunchOptions("h100-sxm"))
    found = asked(tmp_path / "run.sh", LaunchOptions("h100-sxm", gpus=8))
    cluster = found.scenario.raw.data["cluster"]
    assert (cluster["trainer_gpus"], cluster["replicas"]) == (6, 2)
