"""Models of published tables by the name that the table gives them."""

from functools import cache

from benchmarks.validation.files import PUBLISHED, read_rows, value_of
from rollcast.simulator.costs.presets.models import Model, load_model
from rollcast.simulator.errors import ScenarioError

PRESETS = {
    "meta-llama/Meta-Llama-3-8B": "llama-3.1-8b",
    "meta-llama/Meta-Llama-3-70B": "llama-3.1-70b",
    "Qwen/Qwen2-7B": "qwen2.5-7b",  # the same widths
    "deepseek-ai/DeepSeek-V3": "deepseek-v3",
    "Qwen/Qwen3-8B": "qwen3-8b",
    "Qwen/Qwen3-0.6B": "qwen3-0.6b",
    "Qwen/Qwen3-4B-Instruct-2507": "qwen3-4b",
    "Qwen/Qwen3-30B-A3B-Instruct-2507": "qwen3-30b-a3b",
}
FILE = "architectures.csv"


@cache
def typed_in() -> dict[str, Model]:
    """Architectures that are no preset. Raises ScenarioError for one that contradicts itself."""
    models = {}
    for row in read_rows(PUBLISHED / FILE, ("name", "layers", "source")):
        given = {key: value_of(cell) for key, cell in row.items() if cell}
        models[row["name"]] = Model.from_mapping(given, f"{FILE}, {row['name']}")
    return models


def architecture(name: str) -> Model:
    """The model ``name``. Raises ScenarioError for one that is neither preset nor typed in."""
    if name in PRESETS:
        return load_model(PRESETS[name])
    if name not in typed_in():
        raise ScenarioError("model", f"the architecture of {name!r} is not in {FILE}")
    return typed_in()[name]
