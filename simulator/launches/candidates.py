"""Which stack a launch is of: by its program, else by the table that knows most of its keys."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.launches import around, others
from rollcast.simulator.launches.configs import parse_tree
from rollcast.simulator.launches.names import is_called
from rollcast.simulator.launches.one_read import COMMAND, OneRead
from rollcast.simulator.launches.pieces import cut, known, place_of, plain, shown, unknown
from rollcast.simulator.launches.python.expressions import Load
from rollcast.simulator.launches.python.follow import follow
from rollcast.simulator.launches.python.notebook import SCRIPTS
from rollcast.simulator.launches.python.script import Script, Shipped
from rollcast.simulator.launches.settle import negated
from rollcast.simulator.launches.shell.expand import OUTSIDE, Value
from rollcast.simulator.launches.shell.session import Called, Found
from rollcast.simulator.launches.sources import Sources
from rollcast.simulator.launches.trees import WANDB, read_yaml_tree
from rollcast.simulator.launches.values import Leaf, plain_tree
from rollcast.simulator.launches.words import (
    CONFIGURATIONS,
    SURE,
    Program,
    entered,
    options,
    programs,
    server,
)
from rollcast.simulator.stacks.launch import Given
from rollcast.simulator.stacks.settings import Place, Setting
from rollcast.simulator.stacks.stack import Stack

_MOST_CALLS = 1_000
_LEAST = 2
"""Keys of a stack that make a launch without a known entry one of it."""
_STEPS = "deepspeed.initialize"
"""Called by loops that no trainer of a stack's runs."""
_SHARE = 1 / 3
"""The least share of such a launch's keys that its stack must have; of own entries of stacks' users
it has 0.44 to 0.74, of other stacks' at most 0.26."""
_MANY, _ENOUGH = 6, 20
_SHARE_OF_MANY = 0.1
"""The same of a configuration by itself with that many keys of a stack: whole configurations have
hundreds that are not read (of verl's and RLinf's 0.18 to 0.45 are), and ROLL's with many
environments 0.09; with enough keys none is asked."""


@dataclass(frozen=True)
class Candidate:
    """A stack that a launch may be of, with what was found if it is. weight: of its program, in
    keys, as `entered`. machine: what the launcher's own words say, by our key. other: where it is
    no RL loop, and what it is then."""

    stack: Stack
    found: Sequence[Given]
    weight: int = 0
    entry: str = ""
    machine: Mapping[str, Setting] = field(default_factory=dict)
    notes: Sequence[str] = ()
    other: tuple[str, str] = ("", "")

    @property
    def score(self) -> float:
        """Keys of the stack's table among what was found, and the program's weight."""
        return known_keys(self.stack, self.found) + self.weight


def _imports(script: Script, stack: Stack) -> bool:
    """Whether a script imports from a package of which an entry of the stack's is."""
    packages = {entry.partition(".")[0] for entry in stack.launch.entries if "." in entry}
    packages |= {stack.name}
    return any(name.partition(".")[0] in packages for name in script.imports)


def _entered(stack: Stack, call: Called, program: Program, script: Script | None) -> int:
    """How much a command's program speaks for a stack, as `entered`; not at all by its name alone
    where it is a script that imports nothing of the stack's and steps a model by itself."""
    if others.by_program(stack.launch, call.words, program):
        return SURE
    calls = [] if script is None or _imports(script, stack) else script.calls
    if any(is_called(one.name, _STEPS) for one in calls):
        return 0
    return entered(stack.launch, program)


def known_keys(stack: Stack, found: Iterable[Given]) -> int:
    """How many keys of a stack's table were given."""
    launch = stack.launch
    return len({key for item in found if (key := negated(launch, item).key) in launch.ours})


def best(candidates: Sequence[Candidate], name: str, told: bool) -> Candidate:
    """The candidate that most speaks for. told: whether the user said which stack. Raises
    ScenarioError where none does, or several do."""
    ordered = sorted(candidates, key=lambda one: (-one.score, bool(one.other[1])))
    if not ordered or (ordered[0].score < _LEAST and not told):
        raise ScenarioError(
            name, "no launch of a known stack was found in it; give --stack if there is one"
        )
    if not ordered[0].weight:  # of whose flags a program of another's has some, too
        ordered.sort(key=lambda one: not (one.weight and one.other[1]))
    first, *others = ordered
    keys, own = len({item.key for item in first.found}), known_keys(first.stack, first.found)
    share = _SHARE if first.entry or own < _MANY else _SHARE_OF_MANY * (own < _ENOUGH)
    where, what = first.other
    if not told and not first.weight and own < share * keys and (first.entry or not what):
        raise ScenarioError(
            name,
            f"no launch of a known stack was found in it: {first.stack.name} is most like it, with "
            f"{own} of its {keys} keys; give --stack if it is one",
        )
    if others and others[0].score == first.score and others[0].stack is not first.stack:
        names = f"{first.stack.name} or {others[0].stack.name}"
        raise ScenarioError(name, f"may be a launch of {names}; say which with --stack")
    if what:
        raise ScenarioError(where, what)
    return first


@dataclass
class Reader:
    """Reads a launch as each stack would. shipped: what the stacks give to scripts of Python's."""

    sources: Sources
    shipped: Shipped = field(default_factory=Shipped)
    notes: list[str] = field(default_factory=list)
    _scripts: dict[Path, Script] = field(default_factory=dict)

    def of_calls(self, found: Found, stacks: Sequence[Stack]) -> list[Candidate]:
        """The candidates of the command that is likeliest a launch: the first of those that give
        about as many keys of a stack as any does."""
        rated_: list[tuple[float, Called, list[tuple[Stack, Program, int]]]] = []
        for call in self._with_started(found.calls):
            some = self._stacks_of(call, stacks)
            if some:
                score = max(self._quick(call, *one) for one in some)
                rated_.append((score, call, some))
        if not rated_:
            return []
        most = max(score for score, _, _ in rated_)
        chosen = next(one for one in rated_ if one[0] >= most / 2)
        _, call, some = chosen
        self.sources.near = call.folders
        others = [
            str(one.place) for score, one, _ in rated_ if one is not call and score >= most / 2
        ]
        if others:
            places = ", ".join(dict.fromkeys(others[:3]))
            more = "another is" if len(others) == 1 else f"{len(others)} others are"
            self.notes.append(f"{call.place}: the launch that is read; {more} in {places}")
        if call.maybe:
            self.notes.append(f"{call.place}: whether it is launched, {call.maybe}")
        return self._candidates(call, found, some)

    def _with_started(self, calls: Iterable[Called]) -> list[Called]:
        """Commands, each followed by those that the script of Python's which it starts runs."""
        found: list[Called] = []
        seen: set[int] = set()
        left = list(reversed(list(calls)))
        while left and len(found) < _MOST_CALLS:
            call = left.pop()
            found.append(call)
            scripts = (self._script(call, program) for program in programs(call.words))
            script = next((one for one in scripts if one is not None), None)
            if script is None or id(script) in seen:
                continue
            seen.add(id(script))
            self.notes.extend(script.notes if script.commands else ())
            for one in reversed(script.commands):
                doubt = call.maybe or one.maybe
                started = replace(call, words=one.words, place=one.place, maybe=doubt)
                left.append(replace(started, missing=frozenset()))
        return found

    def _stacks_of(self, call: Called, stacks: Sequence[Stack]) -> list[tuple[Stack, Program, int]]:
        """The stacks that a command may launch, by the first of its programs that tells for sure,
        else the first that tells."""
        likely: list[tuple[Stack, Program, int]] = []
        if any(server(stack.launch, call.words) is not None for stack in stacks):
            return []
        for program in programs(call.words):
            script = self._script(call, program)
            some = []
            own = {stack.name: _entered(stack, call, program, script) for stack in stacks}
            for stack in stacks:
                weight = own[stack.name]
                if SURE not in own.values() and script is not None and _imports(script, stack):
                    weight = SURE
                if weight or len(stacks) == 1 or self._quick(call, stack, program, 0) >= _LEAST:
                    some.append((stack, program, weight))
            if any(weight == SURE for _, _, weight in some):
                return some
            if some and not likely:  # a name that others may have: each says what it makes of it
                weights = {stack.name: weight for stack, _, weight in some}
                likely = [(stack, program, weights.get(stack.name, 0)) for stack in stacks]
        return likely

    def _script(self, call: Called, program: Program) -> Script | None:
        """What is started, if it is a script of Python's that is there."""
        path = self._path(call, program)
        if path is None:
            return None
        if path not in self._scripts:
            arguments = {
                option.key: option.value
                for option in options(call.words[program.at + 1 :], "--key value")
                if option.kind == "flag"
            }
            environment = {
                name: shown(value)
                for name, value in call.variables.items()
                if isinstance(value, tuple) and plain(value) is not None
            }
            try:
                text = self.sources.read(path)
                name = self.sources.name(path)
                load = self._loader((path.parent, *call.folders, self.sources.folder))
                self._scripts[path] = follow(text, name, arguments, environment, self.shipped, load)
            except ScenarioError as error:
                if path == self.sources.first:
                    raise
                self.notes.append(str(error))
                self._scripts[path] = Script()
        return self._scripts[path]

    def _loader(self, folders: Sequence[Path]) -> Load:
        """Reads a configuration that a script of Python's names. folders: where it may be."""

        def load(path: str) -> Any:
            start = re.match(r"\{.*\}(?=/)", path)
            text = known(path, Place(""))
            if start is not None:  # a folder that only a run knows
                before, after = cut(text, start.end())
                text = (*unknown(shown(before), Place(""), "of a run"), *after)
            found = self.sources.find(text, *folders)
            if found is None or found.suffix not in CONFIGURATIONS:
                return None
            try:
                content, name = self.sources.read(found), self.sources.name(found)
                return plain_tree(parse_tree(self.sources, content, name, found.suffix))
            except ScenarioError:  # a dataset, say
                return None

        return load

    def _path(self, call: Called, program: Program) -> Path | None:
        if not program.module:
            named = shown(program.path).endswith(SCRIPTS)
            folders = (*call.folders, self.sources.folder)
            return self.sources.find(program.path, *folders) if named else None
        if "." not in program.name:
            return None
        file = known(program.name.replace(".", "/") + ".py", program.path[0].place)
        return self.sources.find(file, *call.folders)

    @staticmethod
    def _quick(call: Called, stack: Stack, program: Program, weight: int) -> float:
        """How many keys of a stack the command's own words give."""
        given = [
            Given(option.key, True, option.place)
            for option in options(call.words[program.at + 1 :], stack.launch.form)
            if option.kind in ("flag", "override")
        ]
        return known_keys(stack, given) + weight

    def _candidates(
        self, call: Called, found: Found, some: Sequence[tuple[Stack, Program, int]]
    ) -> list[Candidate]:
        """A command as each stack would read it. Raises ScenarioError where the likeliest of them
        could not."""
        read: list[Candidate] = []
        wrong: list[tuple[float, ScenarioError]] = []
        for one in some:
            try:
                read.append(self._candidate(call, found, *one))
            except ScenarioError as error:
                wrong.append((self._quick(call, *one), error))
        worst = max(wrong, key=lambda one: one[0], default=None)
        if worst is not None and worst[0] >= max((one.score for one in read), default=0):
            raise worst[1]
        return read

    def _candidate(
        self, call: Called, found: Found, stack: Stack, program: Program, weight: int
    ) -> Candidate:
        read = OneRead(self.sources, stack, call.variables, call.folders)
        after = list(options(call.words[program.at + 1 :], stack.launch.form))
        given = read.of_options(
            after, program, self._script(call, program), self._path(call, program)
        )
        self._check_lost(call, found, given, stack)
        before = call.words[: program.at]
        variables = {**call.variables, **around.of_ray(before, call.place)}
        environment = around.environment(variables, call.place, stack.launch)
        machine = {**environment, **around.launchers(before, call.place)}
        given.extend(read.of_launcher(before, call.place))
        servers = (read.of_server(one.words, one.place) for one in found.calls)
        given.extend(next((said for said in servers if said), ()))
        given.extend(around.of_stack(variables, call.place, stack.launch))
        entry = shown(program.path)
        started = others.by_program(stack.launch, call.words, program)
        place = place_of(program.path, call.place)
        script = self._script(call, program)
        other = others.reason(stack.launch, started, place, script, given)
        return Candidate(stack, given, weight, entry, machine, read.notes, other)

    def _check_lost(self, call: Called, found: Found, given: Sequence[Given], stack: Stack) -> None:
        """Raises ScenarioError where the launch uses what a file that is not there would set."""
        lost = [one for one in found.lost if one.sourced]
        if not lost:
            return
        names = set(call.missing)
        for text in call.words:
            for piece in text:
                match = re.match(r"(\w+) has no value", piece.why)
                if match:
                    names.add(match[1])
        names = {name for name in names if not OUTSIDE.fullmatch(name)}
        if names:
            raise ScenarioError(
                str(lost[0].place),
                f"{lost[0].said}; the launch in {call.place} uses {', '.join(sorted(names)[:3])}",
            )

    def of_config(
        self, path: Path, stacks: Sequence[Stack], variables: Mapping[str, Value]
    ) -> list[Candidate]:
        """The candidates of a configuration by itself."""
        if path.name == "overrides.yaml":
            listed = read_yaml_tree(self.sources.read(path), path.name, COMMAND, self.sources)
            if isinstance(listed, list):
                return [self._of_overrides(listed, stack, variables) for stack in stacks]
        found = []
        for stack in stacks:
            read = OneRead(self.sources, stack, variables)
            whole = read.of_file(path)
            given = [item for item in whole if not item.key.startswith(f"{WANDB}.")]
            if known_keys(stack, given) or len(stacks) == 1:
                other = others.reason(stack.launch, "", Place(path.name), None, given, alone=True)
                machine = around.wandb(whole) if len(given) < len(whole) else {}
                weight = SURE * read.on_shipped
                found.append(Candidate(stack, given, weight, "", machine, read.notes, other))
        return found

    def _of_overrides(
        self, listed: Sequence[Leaf], stack: Stack, variables: Mapping[str, Value]
    ) -> Candidate:
        texts = [known(str(leaf.value), leaf.place) for leaf in listed]
        read = OneRead(self.sources, stack, variables)
        given = read.of_tree({}, list(options(texts, "key=value")))
        return Candidate(stack, given)
