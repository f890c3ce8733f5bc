"""The table of a stack's launch settings, as the ``launch.yaml`` of the stack's folder has it::

    form: key=value            # how its command line spells a setting
    switches: valued           # and true and false, with --key value: see `launch.Switches`
    releases: 0.3 to 0.9.1     # whose sources and configurations were read
    keys:
      model: actor.path                                # ours: theirs
      workload.group_size: [n, rollout.n]              # the first is taken, and is written
      run.mode: {key: trainer.mode, since: 0.9}        # holds from that release on (until: before)
      run.packing: [{key: pack, since: 0.7, default: true}, {key: pack, until: 0.7, default: false}]
      engine.max_seqs: {key: max_num_seqs, default: 256}     # where a launch does not give it
      run.x: {key: (a word), since: 0.9, default: 2}  # what no key of theirs changes
      engine.prefix_caching: {key: no-cache, inverted: true} # theirs says the opposite
      run.recompute:
        - {key: checkpointing, values: {full: true, none: false}}  # ours: theirs, or a list of them
        - key: granularity
          where: {run.strategy: megatron}       # counts, and is written, in such a run alone
          also: {full: {method: uniform}}       # what has to be said with a value of ours, or any
          beside: {run.reference: true}         # written too, with the first, where this holds
          added: true                           # Hydra wants ++ before a key that it does not have
      run.free: {key: $STACK_FREES, part: "^(1)$", values: {true: 1}}  # of its environment
      run.lora_rank: {key: lora-rank, fork: true}  # a fork's: read, not written
      run.zero_stage: {key: launcher.zero_stage, spelt: "launcher --zero_stage {}"}  # if elsewhere
      run.strategy: {key: backend, part: "^(fsdp|megatron)"}   # of their value, what the group has
    implies: {run.critic: {run.critic_model: given}}   # as `simulator.stacks.implied` says
    deals: []                                          # as `simulator.stacks.deals` says
    advice:
      sync: "{run.mode}=sync"  # by the what-if; {ours} is their key for it
      april: [{words: --partial, since: 0.9}, {words: a sampler of your own, until: 0.9}]
    entries: [main_ppo, "recipe.*.main_*"]     # modules, scripts and commands that launch it
    shipped: [ppo_trainer]     # configurations that come with it, whose values are the defaults
    packages: [verl]           # as pip, images and repositories name it
    versions: [verl/version/version]   # files of its own sources that say their version
    servers: [trl vllm-serve]  # commands beside it, whose options are keys below server
    calls:                     # of a script of Python: their keys by argument
      "*GRPOConfig": {"*": "*"}                  # each argument is a key
      LoraConfig: {r: lora_r, true: use_peft}    # true: of the call itself
    starts:                    # functions of Python that start its program with a text of flags
      "*execute_train": {arguments: train_args, script: train_script, default: train.py}
    classes: {"*TrainConfig": {num_nodes: 1}}    # that scripts inherit from: fields, defaults
    constants: {"*GPUS_OF": {H100: 8}}           # of its modules
    harmless: [report_to, "*_name"]              # keys that change neither memory nor time
    parts: {trainer: [train.toml]}               # files of one folder, by the key they are below
    renamed: {student: actor}                    # what keys of one of its loops begin with
    others:                    # what it starts that is no RL loop that is known, and what that does
      trains on given answers: {programs: ["*sft*"], calls: ["*SFTTrainer"], keys: {task: [sft]}}

Ours are those of `simulator.stacks.settings.meanings`; in ``values``, ``where`` and ``also`` their
values are ours too, those of ``default`` the stack's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar, get_args

from rollcast.simulator.stacks.deals import deals
from rollcast.simulator.stacks.implied import rules
from rollcast.simulator.stacks.keys import Key
from rollcast.simulator.stacks.launch import FORMS, NAMED, Launch, Other, Switches, Words
from rollcast.simulator.stacks.settings import meanings
from rollcast.simulator.values.yaml_file import read_yaml

_SIGNS = ("programs", "calls", "keys", "lacks")
_Kind = TypeVar("_Kind", Key, Words)


def load_launch(path: Path) -> Launch:
    """The table in a file. Raises ValueError, with file and key, where it is not as said above."""
    data = read_yaml(path)
    where = f"{path.parent.name}/{path.name}"
    if not isinstance(data, dict) or data.get("form") not in FORMS:
        raise ValueError(f"{where}: form must be one of {', '.join(FORMS)}")
    switches = data.get("switches", "bare")
    if switches not in get_args(Switches):
        raise ValueError(f"{where}: switches must be one of {', '.join(get_args(Switches))}")
    keys = {
        ours: tuple(
            _entry(Key, "key", entry, f"{where}: {ours}")
            for entry in (entries if isinstance(entries, list) else [entries])
        )
        for ours, entries in data["keys"].items()
    }
    launch = Launch(data["form"], keys, {}, str(data.get("releases", "")), switches)
    for ours in (*keys, *launch.conditions):
        if ours not in meanings():
            raise ValueError(f"{where}: {ours} is no setting of ours (meanings.yaml)")
    advice = {
        change: tuple(
            _entry(Words, "words", entry, f"{where}: {change}")
            for entry in (said if isinstance(said, list) else [said])
        )
        for change, said in data.get("advice", {}).items()
    }
    for entry in (entry for entries in advice.values() for entry in entries):
        for ours in NAMED.findall(entry.words):
            if ours not in keys:
                said = f"{entry.words!r} names a setting that the table has no key for"
                raise ValueError(f"{where}: {said}")
    lists: dict[str, Any] = {
        name: tuple(map(str, data.get(name, ())))
        for name in ("entries", "shipped", "packages", "versions", "harmless", "servers")
    }
    tables: dict[str, Any] = {
        name: data.get(name, {})
        for name in ("calls", "starts", "classes", "constants", "parts", "renamed")
    }
    implies = rules(data.get("implies", {}), where)
    dealt = deals(data.get("deals", ()), where)
    others = tuple(
        _other(words, signs, f"{where}: others") for words, signs in data.get("others", {}).items()
    )
    named: dict[str, Any] = {"advice": advice, "implies": implies, "deals": dealt}
    named["others"] = others
    return replace(launch, **named, **lists, **tables)


def _other(words: str, signs: Mapping[str, Any], where: str) -> Other:
    """Raises ValueError for a sign that there is not."""
    if unknown := signs.keys() - set(_SIGNS):
        raise ValueError(f"{where}: {min(unknown)} is none of {', '.join(_SIGNS)}")
    lists = {name: tuple(map(str, signs.get(name, ()))) for name in _SIGNS if name != "keys"}
    return Other(words, keys=signs.get("keys", {}), **lists)


def _entry(kind: type[_Kind], name: str, entry: Any, where: str) -> _Kind:
    """A `Key` or `Words`: its fields, or the one of that name alone."""
    fields = dict(entry) if isinstance(entry, dict) else {name: entry}
    for bound in ("since", "until"):
        if bound in fields:
            fields[bound] = str(fields[bound])
    try:
        return kind(**fields)
    except TypeError as error:
        raise ValueError(f"{where}: {error}") from None
