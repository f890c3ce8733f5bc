"""A new stack is a new folder: it is found by itself, and nothing else is touched."""

import json
import subprocess
import sys
from pathlib import Path

import pandas as pd

FILES = {
    "__init__.py": '"""A stack that nobody has written."""\n',
    "launch.yaml": """
form: --key value
releases: "1.0"
keys:
  model: model-path
  workload.batch_groups: prompts
  workload.group_size: samples
  workload.max_new_tokens: cap
  run.gpus_per_node: {key: gpus, default: 8}
  run.nodes: nodes
  run.steps: updates
advice:
  over_sampling: "{workload.batch_groups} up"
""",
    "costs.yaml": """
presets:
  madeup:
    settings:
      engine: vllm-0.19
      sync: {colocated: reshard, disaggregated: nccl_packed}
      kind: assumed
      source: nobody
    rest: {rest_s: 7.0, spread: [0.5, 2.0], kind: assumed, source: nobody}
trainers:
  fsdp:
    overlap: {value: 1.0, kind: assumed, source: nobody}
""",
    "log.yaml": """
marks: [mu/]
metrics: {step_s: mu/step, generation_s: mu/sample, update_s: mu/train}
console: {start: 'madeup (\\d+) took ', cue: "madeup ", form: line}
""",
    "log.py": '''
"""Its log: a line a step."""

import re

_ROW = re.compile(r"([\\d.]+) s: sampled ([\\d.]+) s, trained ([\\d.]+) s")


def row(text):
    match = _ROW.match(text)
    keys = ("mu/step", "mu/sample", "mu/train")
    return None, dict(zip(keys, map(float, match.groups()), strict=True))
''',
    "export.py": '''
"""A plan in its settings."""

from rollcast.simulator.stacks.exporting import Export


def export(plan, launch):
    plan.check("madeup")
    batch = plan.first.batch
    settings = {"workload.batch_groups": batch.groups, "workload.group_size": batch.group_size}
    settings["run.steps"] = plan.steps
    return Export("python -m madeup", (*launch.written(settings),), None, plan.exported, "1.0")
''',
}
SCRIPT = """
import json
import sys
from rollcast.simulator import stacks
stacks.__path__.append(sys.argv[1])
from rollcast.__main__ import main
for words in json.loads(sys.argv[2]):
    sys.argv = ["rollcast", *words]
    try:
        main()
    except SystemExit as end:
        if end.code:
            raise
"""
LOG = """madeup --model-path /models/qwen3-8b
$ python -m madeup --model-path /models/qwen3-8b --prompts 64 --samples 8 --cap 4096 --gpus 8
""" + "\n".join(f"madeup {n} took 60.{n} s: sampled 40.{n} s, trained 20.0 s" for n in range(1, 9))


def test_a_folder_is_all_that_a_stack_needs(tmp_path: Path) -> None:
    folder = tmp_path / "more" / "madeup"
    folder.mkdir(parents=True)
    for name, text in FILES.items():
        (folder / name).write_text(text.lstrip())
    (tmp_path / "run.log").write_text(LOG + "\n")
    example = Path(__file__).parents[2] / "examples" / "april.yaml"

    cost = "cost={roofline: {stack: madeup}}"
    plain = ("--set", cost, "--set", "steps=1", "--no-plot", "--draws", "0", "--out", "run")
    commands = (
        ("import", "run.log", "--out", "read", "--no-advise"),
        ("export", example, "--policy", "sync", "--to", "madeup", "--out", "script"),
        ("presets", "stacks", "madeup"),
        ("simulate", example, *plain),
    )
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT, folder.parent, json.dumps(commands, default=str)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ran.returncode == 0, ran.stderr
    # its log is read, with the settings of its command line
    scenario = (tmp_path / "read" / "scenario.yaml").read_text()
    assert "batch_groups: 64  # prompts in run.log, line 2" in scenario
    assert "group_size: 8" in scenario
    # a plan is exported to it
    arguments = (tmp_path / "script" / "args.sh").read_text()
    assert "--prompts 32" in arguments
    assert "--samples 8" in arguments
    assert "Made for 1.0" in (tmp_path / "script" / "README.md").read_text()
    # its loop is priced
    assert "vllm-0.19" in ran.stdout
    spans = pd.read_csv(tmp_path / "run" / "spans.csv")
    rest = spans[spans["kind"] == "rest"]
    assert (rest["end_s"] - rest["start_s"]).round(6).tolist() == [7.0]
