"""Policies from outside: any importable class, ``module:Class``, and entry points of the group
``rollcast.policies``."""

from __future__ import annotations

import importlib
import inspect
import sys
import sysconfig
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, is_dataclass
from functools import cache, partial
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any, get_type_hints

from rollcast.simulator.core.plan import StepPlan
from rollcast.simulator.core.policy import Policy, StepOutcome
from rollcast.simulator.errors import RollcastError, RunError, ScenarioError
from rollcast.simulator.values import (
    A_MAPPING,
    Doc,
    Option,
    check_unknown_keys,
    declared,
    join,
    missing,
    read,
    reader_of,
    short,
    wrong,
)

GROUP = "rollcast.policies"
NEEDED = ("init", "plan", "observe")
_HOW = "derive it from rollcast.simulator.core.policy.Policy, or give it init, plan and observe"


@dataclass(frozen=True)
class Outside(Policy):
    """A policy that was made of a class from outside.

    called: its name, ``module:Class`` or an entry point's. given: its parameters that differ from
    their defaults. What it raises becomes a RunError that names its own file and line.
    """

    called: str
    given: tuple[tuple[str, Any], ...]
    policy: Any = field(compare=False, repr=False)

    def __post_init__(self) -> None:
        """Its parameters were checked where it was made."""

    @property
    def decides(self) -> frozenset[str] | None:
        """What it declares, if anything."""
        declares: frozenset[str] | None = getattr(self.policy, "decides", None)
        return declares

    @property
    def builds_on(self) -> frozenset[str]:
        """What it declares."""
        declares: frozenset[str] = getattr(self.policy, "builds_on", frozenset())
        return declares

    @property
    def behind(self) -> object:
        """The object of the class from outside."""
        return self.policy

    def init(self) -> Any:
        """Its own first state."""
        return self._call("init")

    def plan(self, plan: StepPlan, state: Any) -> StepPlan:
        """Its own plan. Raises RunError where that is none."""
        planned = self._call("plan", plan, state)
        if not isinstance(planned, StepPlan):
            raise RunError(
                f"{self.called}: its plan returns {short(planned)} and not a StepPlan; return "
                "dataclasses.replace(plan, ...)"
            )
        return planned

    def observe(self, state: Any, outcome: StepOutcome) -> Any:
        """Its own next state."""
        return self._call("observe", state, outcome)

    def group_sizes(self, sizes: frozenset[int]) -> frozenset[int]:
        """Its own, if it says them."""
        if not hasattr(self.policy, "group_sizes"):
            return sizes
        group_sizes: frozenset[int] = self._call("group_sizes", sizes)
        return group_sizes

    def describe_state(self, state: Any) -> dict[str, Any]:
        """Its own figures, if it gives any."""
        if not hasattr(self.policy, "describe_state"):
            return {}
        figures: dict[str, Any] = self._call("describe_state", state)
        return figures

    def _call(self, method: str, *arguments: Any) -> Any:
        try:
            return getattr(self.policy, method)(*arguments)
        except RollcastError:
            raise
        except Exception as error:
            raise RunError(f"{self.called}: its {method} failed: {_told(error)}") from error


def is_reference(name: str) -> bool:
    """Whether a name is ``module:Class``."""
    return ":" in name


def is_module(name: str) -> bool:
    """Whether there is a module of this name, which is not imported for it."""
    try:
        return find_spec(name) is not None
    except (ImportError, ValueError, AttributeError):
        return False


@cache
def named() -> Mapping[str, EntryPoint]:
    """The entry points of the group, by name; of one name the first."""
    points: dict[str, EntryPoint] = {}
    for point in entry_points(group=GROUP):
        points.setdefault(point.name, point)
    return points


def load(name: str, where: str, folder: Path | None) -> type:
    """The class that a reference or an entry point's name stands for.

    where: the dotted key that errors start with. folder: where, if given, modules are looked for
    after the Python path and the working directory; both stay on the path once one was.

    Raises ScenarioError where it cannot be imported, with the module's own error, or is no policy.
    """
    point = None if is_reference(name) else named()[name]
    module_name, _, attribute = (name if point is None else point.value).partition(":")
    module = _imported(module_name.strip(), where, folder)
    member: Any = module
    for part in attribute.strip().split("."):
        if not hasattr(member, part):
            place = f" ({module.__file__})" if getattr(module, "__file__", None) else ""
            raise ScenarioError(where, f"{module_name} has no {attribute}{place}; {_has(module)}")
        member = getattr(member, part)
    _check_class(member, where)
    return member  # type: ignore[no-any-return]


def options_of(kind: type) -> tuple[Option, ...]:
    """The parameters of a policy's class: a dataclass's fields, or what its constructor takes."""
    if is_dataclass(kind):
        return declared(kind)
    plain: Any = kind
    try:
        hints = get_type_hints(plain.__init__, include_extras=True)
    except Exception:  # whatever an annotation raises, such as a name that only a checker sees
        hints = {}
    return tuple(
        Option(
            parameter.name,
            reader_of(hints.get(parameter.name, Any)),
            partial(_default, parameter),
            Doc(""),
        )
        for parameter in _signature(kind)
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    )


def _default(parameter: inspect.Parameter) -> Any:
    return MISSING if parameter.default is parameter.empty else parameter.default


def make(kind: type, name: str, params: object, where: str, seed: int) -> Outside:
    """A policy of a class from outside.

    name: what it is called. params: its parameters, each read as its annotation says; a ``seed``
    not given is ``seed``. Raises ScenarioError that names the parameter.
    """
    options = options_of(kind)
    if not isinstance(params, Mapping):
        raise wrong(where, A_MAPPING, params)
    try:
        if is_dataclass(kind):
            policy: Any = read(kind, params, where, defaults={"seed": seed})
            values = {option.key: getattr(policy, option.key) for option in options}
        else:
            values = _values(kind, options, params, where)
            seeded = {"seed": seed} if any(option.key == "seed" for option in options) else {}
            policy = kind(**{**seeded, **values})
    except RollcastError:
        raise
    except Exception as error:
        raise ScenarioError(where, f"cannot be made: {_told(error)}") from None
    defaults = {option.key: option.default for option in options}
    given = [(k, v) for k, v in values.items() if k in params and v != defaults.get(k, MISSING)]
    return Outside(name, tuple(given), policy)


def _values(
    kind: type, options: Sequence[Option], params: Mapping[Any, Any], where: str
) -> dict[str, Any]:
    """The parameters of a class that is no dataclass, read."""
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in _signature(kind)):
        check_unknown_keys(params, [option.key for option in options], where)
    readers = {option.key: option.reader for option in options}
    for option in options:
        if option.required and option.key not in params and option.key != "seed":
            raise missing(join(where, option.key), option.reader.wanted)
    return {
        key: readers[key].read(value, join(where, key)) if key in readers else value
        for key, value in params.items()
    }


def _signature(kind: type) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(kind).parameters.values())
    except (TypeError, ValueError):
        return []


def _imported(name: str, where: str, folder: Path | None) -> Any:
    for place in (Path.cwd(), *([folder.resolve()] if folder else [])):
        if str(place) not in sys.path:
            sys.path.append(str(place))  # last, so that nothing there hides what is installed
    importlib.invalidate_caches()
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and f"{name}.".startswith(f"{error.name}."):
            message = f"there is no module {error.name} on the Python path, in the working "
            raise ScenarioError(where, message + "directory, or beside the scenario") from None
        raise ScenarioError(where, f"importing {name} failed: {_told(error)}") from None
    except (Exception, SystemExit) as error:
        raise ScenarioError(where, f"importing {name} failed: {_told(error)}") from None


def _has(module: Any) -> str:
    """What policies a module has, for an error."""
    names = [
        name
        for name, member in vars(module).items()
        if isinstance(member, type) and member is not Policy and not _lacking(member)
    ]
    return f"it has {', '.join(sorted(names))}" if names else "it has no policy"


def _check_class(kind: Any, where: str) -> None:
    if not isinstance(kind, type):
        raise ScenarioError(where, f"is {short(kind)} and not a class; {_HOW}")
    if lacking := _lacking(kind):
        raise ScenarioError(where, f"is no policy, it has no {' and no '.join(lacking)}; {_HOW}")


def _lacking(kind: type) -> list[str]:
    return [method for method in NEEDED if not callable(getattr(kind, method, None))]


def _told(error: BaseException) -> str:
    """Someone else's error in one sentence, with its file and line."""
    message = f"{type(error).__name__}: {getattr(error, 'msg', None) or error}".rstrip(": ")
    if isinstance(error, SyntaxError) and error.filename:
        return f"{message} ({error.filename}, line {error.lineno})"
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith("<") and Path(frame.filename) != Path(__file__)
    ]
    users = [frame for frame in frames if not frame.filename.startswith(_libraries())] or frames
    return f"{message} ({users[-1].filename}, line {users[-1].lineno})" if users else message


@cache
def _libraries() -> tuple[str, ...]:
    return tuple(
        {sysconfig.get_path(key) for key in ("stdlib", "platstdlib", "purelib", "platlib")}
    )
