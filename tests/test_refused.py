"""What a scenario cannot say: the key that is named, and the sentence. The cases of
``refused.yaml``."""

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from rollcast.simulator.scenario.file import RawScenario
from rollcast.simulator.studies.simulate import from_raw
from tests.refusals import refuses

TABLE = yaml.safe_load(Path(__file__).with_name("refused.yaml").read_text("utf-8"))
TABLE.pop("tiny")  # of tests.test_cli
BASE: dict[str, Any] = {
    "model": "qwen3-8b",
    "gpu": "h100-sxm",
    "cluster": {"replicas": 8, "trainer_gpus": 8},
    "workload": {
        **{"batch_groups": 8, "group_size": 8, "prompt_tokens": 100, "max_new_tokens": 1000},
        "lengths": {
            **{"family": "lognormal", "median_tokens": 500},
            **{"between_sd": 0.3, "within_sd": 0.3},
        },
    },
    "cost": {"roofline": {}},
}


@pytest.mark.parametrize(
    ("section", "given", "key", "words"),
    [(section, given, key, words) for section in TABLE for given, key, *words in TABLE[section]],
)
def test_what_a_section_cannot_say_is_told(
    section: str, given: Any, key: str, words: list[str]
) -> None:
    """Keys of the section that are given hold beside those of the scenario."""
    data = copy.deepcopy(BASE)
    *above, last = section.split(".")
    place = data
    for name in above:
        place = place.setdefault(name, {})
    both = isinstance(given, dict) and isinstance(place.get(last), dict)
    place[last] = {**place[last], **given} if both else given
    with refuses(f"{section}.{key}" if key else section) as caught:
        from_raw(RawScenario(data))
    assert all(word in str(caught.value) for word in words)
