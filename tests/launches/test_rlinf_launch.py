"""A launch of RLinf's: a script that names a configuration, whose numbers its resolvers compute."""

from pathlib import Path

import pytest

from rollcast.simulator.launches.read import read_launch
from rollcast.simulator.stacks.settings import value

CONFIG = """
cluster:
  num_nodes: 2
  component_placement:
    actor,rollout: all
runner: {seq_length: 8192}
algorithm:
  group_size: 8
  recompute_logprobs: ${not:${rollout.return_logprobs}}
  sampling_params:
    max_new_tokens: ${subtract:${runner.seq_length}, ${data.max_prompt_length}}
rollout:
  return_logprobs: RETURNED
  model: {model_path: /models/Qwen2.5-7B}
data: {max_prompt_length: 1024, rollout_batch_size: 64}
actor:
  training_backend: megatron
  model: {recompute_granularity: full, recompute_method: block, recompute_num_layers: 20}
"""
SCRIPT = """
CONFIG_PATH="$( cd "$( dirname "${BASH_SOURCE[0]}" )" && pwd )"
CONFIG_NAME=${1:-small}
python ${CONFIG_PATH}/main_grpo.py --config-path ${CONFIG_PATH}/config/ --config-name $CONFIG_NAME
"""


@pytest.mark.parametrize(("returned", "computed"), [("true", False), ("false", True)])
def test_a_script_and_its_configuration_are_read(
    tmp_path: Path, returned: str, computed: bool
) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "small.yaml").write_text(CONFIG.replace("RETURNED", returned))
    (tmp_path / "run.sh").write_text(SCRIPT)
    launched = read_launch(tmp_path / "run.sh")
    assert launched.stack == "rlinf"
    assert not launched.unresolved
    known = launched.known
    assert value(known, "workload.max_new_tokens") == 7168
    assert value(known, "run.log_probs") is computed
    assert value(known, "run.recompute_layers") == 20
    assert value(known, "run.colocated") is True
    assert "cluster.trainer_gpus" not in known


def test_a_folder_of_configurations_below_a_variable_is_found(tmp_path: Path) -> None:
    """Of the repository, which only a run knows: ``hydra.searchpath``."""
    engines = tmp_path / "examples" / "reasoning" / "config" / "hybrid_engines"
    engines.mkdir(parents=True)
    (engines / "fsdp.yaml").write_text("gradient_checkpointing: true\n")
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "a.yaml").write_text(
        "defaults: [hybrid_engines/fsdp@actor.fsdp_config]\n"
        "hydra: {searchpath: ['file://${oc.env:REPO}/examples/reasoning/config']}\n"
        "actor: {training_backend: fsdp}\n" + CONFIG.replace("actor:\n", "other:\n")
    )
    launch = read_launch(tmp_path / "tests" / "a.yaml", stack="rlinf")
    assert value(launch.settings, "run.recompute") == "full"
