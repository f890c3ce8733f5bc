"""Reads a launch, of whatever stack and in whatever form, without running anything of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.launches import around
from rollcast.simulator.launches.candidates import Candidate, Reader, best
from rollcast.simulator.launches.launched import Launched
from rollcast.simulator.launches.manifests import manifest
from rollcast.simulator.launches.names import is_called
from rollcast.simulator.launches.one_read import parts_of
from rollcast.simulator.launches.pieces import Text, known
from rollcast.simulator.launches.python.notebook import SCRIPTS, SUFFIX, shell_of
from rollcast.simulator.launches.python.script import Shipped
from rollcast.simulator.launches.settle import COMMAND_LINE, settled
from rollcast.simulator.launches.shell.follow import follow, follow_command, follow_texts
from rollcast.simulator.launches.shell.session import Called, Found, Lost
from rollcast.simulator.launches.sources import Sources
from rollcast.simulator.launches.words import options
from rollcast.simulator.stacks.launch import Given
from rollcast.simulator.stacks.settings import Place, Setting
from rollcast.simulator.stacks.stack import Stack, all_stacks
from rollcast.simulator.values.words import nearest

_MANIFESTS = (".yaml", ".yml")
_CONFIGS = (*_MANIFESTS, ".toml", ".json")


def read_launch(
    path: Path | None,
    command: Sequence[str] = (),
    stack: str | None = None,
    environment: Mapping[str, str] | None = None,
) -> Launched:
    """Reads what a launch says.

    path: a script, a configuration, or a folder that holds one of these. command: the words of a
    command, which is a launch by itself, or sets what a path's leaves open or says otherwise.
    stack: its name, where several could be meant. environment: values of variables that a script
    reads from outside. Raises ScenarioError, with file and line, for what cannot be read, is no
    launch, calls a file that is not there, or sets a key of the stack's twice.
    """
    stacks = all_stacks()
    if stack is not None and stack not in stacks:
        raise ScenarioError("--stack", f"{stack} is not known; {nearest(stack, stacks)}")
    wanted = [stacks[stack]] if stack is not None else list(stacks.values())
    words = tuple(known(word, Place(COMMAND_LINE)) for word in command)
    try:
        if path is None:
            if not words:
                raise ScenarioError(
                    "LAUNCH", "give a script, a configuration, or a command after --"
                )
            return _of_command(words, wanted, environment or {})
        return _of_path(launch_in(path), words, wanted, environment or {})
    except OSError as error:  # too long a name, above all
        place = error.filename or path
        raise ScenarioError("LAUNCH", f"cannot read {place}: {error.strerror or error}") from None
    except RecursionError:
        where = COMMAND_LINE if path is None else path.name
        raise ScenarioError(where, "is nested too deeply") from None


def _of_command(
    words: tuple[Text, ...], stacks: Sequence[Stack], environment: Mapping[str, str]
) -> Launched:
    sources = Sources(Path.cwd() / "command")
    found = follow_command(sources, words, COMMAND_LINE, environment)
    return _of_calls(_reader(sources), found, (), stacks, {}, COMMAND_LINE)


def _of_path(
    path: Path, words: tuple[Text, ...], stacks: Sequence[Stack], environment: Mapping[str, str]
) -> Launched:
    sources = Sources(path)
    reader = _reader(sources)
    wrong: ScenarioError | None = None
    if path.suffix in _MANIFESTS and (job := manifest(sources.read(path), path.name)):
        found = follow_texts(sources, path, job.commands, {**job.environment, **environment})
        if candidates := reader.of_calls(found, stacks):
            reader.notes.extend(found.notes)
            return _chosen(reader, candidates, words, job.machine, path.name, len(stacks) == 1)
        wrong = _not_there(found.lost[0]) if found.lost else found.broken
    if path.suffix in _CONFIGS:
        candidates = reader.of_config(path, stacks, _outside(environment))
        if wrong is not None and not candidates:
            raise wrong
        return _chosen(reader, candidates, words, {}, path.name, len(stacks) == 1)
    machine = around.headers(sources.read(path), path.name)
    if path.suffix in SCRIPTS:
        found = Found([_python(path, environment)])
        if path.suffix == SUFFIX:
            shell = follow_texts(sources, path, shell_of(sources.read(path)), environment)
            found = replace(shell, calls=[*found.calls, *shell.calls], broken=None)
    else:
        found = follow(sources, path, {**_HEAD, **around.slurm(machine), **environment})
    return _of_calls(reader, found, words, stacks, machine, path.name)


_HEAD = {"NODE_RANK": "0"}
"""Of the node that starts the program, where several run a script."""


def _reader(sources: Sources) -> Reader:
    """With what any stack gives to scripts."""
    launches = [stack.launch for stack in all_stacks().values()]
    starts = {name: start for launch in launches for name, start in launch.starts.items()}
    classes = {name: fields for launch in launches for name, fields in launch.classes.items()}
    constants = {name: value for launch in launches for name, value in launch.constants.items()}
    return Reader(sources, Shipped(starts, classes, constants))


def _python(path: Path, environment: Mapping[str, str]) -> Called:
    """A script of Python's by itself, as if it was called without arguments."""
    place = Place(path.name, 1)
    words = (known("python", place), known(str(path), place))
    return Called(words, place, frozenset(), "", _outside(environment))


def _outside(environment: Mapping[str, str]) -> dict[str, Text]:
    """Variables that the user gives."""
    return {name: known(value, Place("the environment")) for name, value in environment.items()}


def _of_calls(
    reader: Reader,
    found: Found,
    words: tuple[Text, ...],
    stacks: Sequence[Stack],
    machine: Mapping[str, Setting],
    name: str,
) -> Launched:
    candidates = reader.of_calls(found, stacks)
    if not candidates and found.lost:
        raise _not_there(found.lost[0])
    if not candidates and found.broken is not None:
        raise found.broken
    if not candidates and (missed := _not_reached(reader.sources, stacks)) is not None:
        raise missed
    reader.notes.extend(found.notes)
    return _chosen(reader, candidates, words, machine, name, len(stacks) == 1)


def _not_reached(sources: Sources, stacks: Sequence[Stack]) -> ScenarioError | None:
    """That a line of a script names a stack's program, and nothing leads to it."""
    entries = [entry for stack in stacks for entry in stack.launch.entries if "." in entry]
    for path in sources.files:
        if path.suffix not in (".sh", ".bash", ".sbatch", ".slurm"):
            continue
        for number, line in enumerate(sources.read(path).splitlines(), 1):
            words = line.split("#")[0].split()
            started = next((w for w in words if any(is_called(w, one) for one in entries)), None)
            if started is not None:
                return ScenarioError(
                    str(Place(sources.name(path), number)),
                    f"{started} is not reached (a branch that is not taken, or a function that is "
                    "not called); give its command after --",
                )
    return None


def _not_there(lost: Lost) -> ScenarioError:
    return ScenarioError(str(lost.place), lost.said)


def _chosen(
    reader: Reader,
    candidates: Sequence[Candidate],
    words: tuple[Text, ...],
    machine: Mapping[str, Setting],
    name: str,
    told: bool,
) -> Launched:
    """The launch of the likeliest candidate, with the user's own words over it."""
    chosen = best(candidates, name, told)
    launch = chosen.stack.launch
    given = list(chosen.found)
    if words:
        own = [
            Given(option.key, option.value, option.place, 0)
            for option in options(words, launch.form)
            if option.kind in ("flag", "override")
        ]
        if not own:
            raise ScenarioError(COMMAND_LINE, "what follows -- sets nothing of the launch's")
        given.extend(own)
    return settled(
        chosen.stack,
        given,
        {**machine, **chosen.machine},
        chosen.entry,
        reader.sources,
        [*reader.notes, *chosen.notes],
    )


_HYDRA = Path(".hydra", "config.yaml")
_FIRST = ("run.sh", "train.sh", "launch.sh", "config.yaml", "rl.toml", "config.yml", "train.py")
_KINDS = (".sh", ".slurm", ".sbatch", ".yaml", ".yml", ".toml", *SCRIPTS)
_PYTHON = tuple((suffix,) for suffix in SCRIPTS)
_MOST = 20_000


def launch_in(path: Path) -> Path:
    """The path itself, or the one launch of a folder: what Hydra left of a run, a file with a usual
    name, or its only script or configuration. Raises ScenarioError where there is none, or more."""
    if not path.is_dir():
        return path
    if (path / _HYDRA).is_file():
        return path / _HYDRA
    if path.name == ".hydra" and (path / "config.yaml").is_file():
        return path / "config.yaml"
    usual = [path / name for name in _FIRST if (path / name).is_file()]
    if usual:
        return _only(path, usual)
    found: list[Path] = []
    for number, file in enumerate(path.iterdir()):
        if number > _MOST:
            raise ScenarioError(str(path), f"holds more than {_MOST:,} files; name the launch")
        if file.suffix in _KINDS and file.is_file():
            found.append(file)
    for suffixes in ((".sh", ".slurm", ".sbatch"), (".toml",), (".yaml", ".yml"), *_PYTHON):
        some = sorted(file for file in found if file.suffix in suffixes)
        if some:
            return _only(path, some)
    raise ScenarioError(str(path), "holds no script and no configuration; name the launch")


def _only(path: Path, files: list[Path]) -> Path:
    first = files[0]
    if len(files) == 1:
        return first
    if any(set(files) <= set(parts_of(one, first).values()) for one in all_stacks().values()):
        return first
    names = ", ".join(file.name for file in files[:6]) + (" ..." if len(files) > 6 else "")
    raise ScenarioError(str(path), f"several files could be the launch: {names}; name one")
