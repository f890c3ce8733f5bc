"""What is exported to verl is what verl takes: every key is one of its configuration's, as Hydra
composes it, and its own check of a configuration passes. A user adds the engine's name alone."""

import importlib.util
import re
import subprocess
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from rollcast.engine.export.write import export
from rollcast.simulator.stacks.stack import all_stacks
from tests.export.scenarios import TRAINERS, priced

VERL = Path(getattr(importlib.util.find_spec("verl"), "origin", None) or "").parent
POLICIES = ("sync", "april(over_sampling=2.5)+pods(keep=2)", "one_step_off", "fully_async")
MORE = (("colocate_async", None), ("dynamic_sampling(refill_when=drained)", None))
RELEASE, SEARCH = "0.9.1", "hydra.searchpath=[pkg://verl.trainer.config]"
ENGINE = "actor_rollout_ref.rollout.name"


def exported(policy: str, roofline: dict[str, Any] | None, out: Path) -> tuple[str, str, list[str]]:
    """(module, name of its configuration, arguments) of an export; ``model`` is the model."""
    export(priced(policy, roofline), "verl", out)
    script = 'MODEL=model; source "$0"; printf "%s\\n" "${ROLLCAST_ARGS[@]}"'
    said = subprocess.run(
        ["bash", "-c", script, str(out / "args.sh")], capture_output=True, text=True, check=True
    )
    readme = (out / "README.md").read_text()
    assert f"give `{ENGINE}`" in readme
    command = re.search(r"python3 -m (\S+)(?: --config-name=(\S+))?", readme)
    assert command
    source = VERL.parent.joinpath(*command[1].split(".")).with_suffix(".py").read_text()
    own = re.search(r'config_name="(\w+)"', source)
    assert own
    return command[1], command[2] or own[1], [f"{ENGINE}=sglang", *said.stdout.splitlines()]


@pytest.mark.filterwarnings("ignore:Disabled critic")
@pytest.mark.parametrize(("policy", "roofline"), [*product(POLICIES, TRAINERS), *MORE])
def test_verl_takes_what_is_exported(
    policy: str, roofline: dict[str, Any] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hydra import compose, initialize_config_dir
    from omegaconf import OmegaConf
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import omega_conf_to_dataclass, validate_config

    monkeypatch.chdir(tmp_path)  # a recipe finds nothing below the working folder
    module, name, said = exported(policy, roofline, tmp_path / "out")
    folder = VERL.parent.joinpath(*module.split(".")).parent / "config"
    with initialize_config_dir(str(folder), version_base=None):
        config = compose(name, said)
    OmegaConf.to_container(config, resolve=True)
    for setting in said:
        key, _, wanted = setting.lstrip("+").partition("=")
        if key not in ("hydra.searchpath", "model_engine"):
            found = OmegaConf.select(config, key)
            assert str(found) == wanted or key.endswith(("path", "state_dir")), key
    if policy == "fully_async":  # which has no batch, and checks its roles' settings alone
        assert omega_conf_to_dataclass(config.actor_rollout_ref.actor).ppo_mini_batch_size == 4
        assert (config.data.train_batch_size, config.data.gen_batch_size) == (0, 1)
        assert not config.actor_rollout_ref.hybrid_engine
    else:
        validate_config(config, need_reference_policy(config), need_critic(config))
    assert omega_conf_to_dataclass(config.actor_rollout_ref.rollout).n == 4


def test_every_key_that_is_read_of_a_launch_is_verls() -> None:
    """In one configuration of this release or another, but for what Hydra is told to add."""
    from hydra import compose, initialize_config_dir
    from omegaconf import OmegaConf

    experiments, keys = VERL / "experimental", set()
    for folder, name, said in (
        (VERL / "trainer" / "config", "ppo_trainer", "model_engine=dp"),
        (VERL / "trainer" / "config", "ppo_trainer", "model_engine=megatron"),
        (VERL / "trainer" / "config", "ppo_trainer", "model_engine=veomni"),
        (experiments / "one_step_off_policy" / "config", "one_step_off_ppo_trainer", SEARCH),
        (experiments / "fully_async_policy" / "config", "fully_async_ppo_trainer", SEARCH),
    ):
        with initialize_config_dir(str(folder), version_base=None):
            keys |= set(dotted(OmegaConf.to_container(compose(name, [said]), resolve=False)))
    ours = [key for each in all_stacks()["verl"].launch.keys.values() for key in each]
    wanted = {key.key for key in ours if key.holds(RELEASE) and not key.added and not key.part}
    assert wanted - keys == set()


def dotted(node: Any, before: str = "") -> Iterator[str]:
    """The keys of a configuration, those of its parts included."""
    for name, inner in node.items() if isinstance(node, dict) else ():
        yield before + str(name)
        yield from dotted(inner, f"{before}{name}.")


def test_a_recipe_starts_in_any_folder(tmp_path: Path) -> None:
    """By its own command, up to the configuration that it prints."""
    module, _, said = exported("one_step_off", None, tmp_path / "out")
    done = subprocess.run(
        [sys.executable, "-m", module, *said, "--cfg", "job"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "hybrid_engine: false" in done.stdout
