"""Commands declared as functions: the annotation of each parameter holds its type and its option.

Seed = Annotated[int | None, option("--seed", metavar="N", help="Set the random seed.")]

@command(app)
def simulate(scenario: ScenarioPath, seed: Seed = None) -> None: ...
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import click

Declared = Callable[[inspect.Parameter, Any], click.Parameter]
"""Makes the option or argument of a function's parameter of this type."""

_Function = TypeVar("_Function", bound=Callable[..., None])


def option(*names: str, **settings: Any) -> Declared:
    """An option: a flag for a bool, repeatable for a tuple, required without a default. settings:
    of `click.Option`."""
    return partial(_parameter, click.Option, names, settings)


def argument(metavar: str, **settings: Any) -> Declared:
    """A positional argument: several for a tuple, required without a default. settings: of
    `click.Argument`."""
    return partial(_parameter, click.Argument, (), {"metavar": metavar, **settings})


def command(
    group: click.Group, name: str | None = None, text: str | None = None
) -> Callable[[_Function], _Function]:
    """Adds a function as a command. name, text: its name and help; default: the function's."""

    def add(function: _Function) -> _Function:
        hints = get_type_hints(function, include_extras=True)
        parameters = []
        for parameter in inspect.signature(function).parameters.values():
            kind, declared = get_args(hints[parameter.name])
            parameters.append(declared(parameter, kind))
        group.add_command(
            click.Command(
                name or function.__name__,
                callback=function,
                params=parameters,
                help=text or inspect.getdoc(function),
                context_settings={"show_default": True},
            )
        )
        return function

    return add


def _parameter(
    make: type[click.Parameter],
    names: tuple[str, ...],
    settings: Mapping[str, Any],
    parameter: inspect.Parameter,
    kind: Any,
) -> click.Parameter:
    made = dict(settings)
    if isinstance(kind, UnionType):  # of a type and None
        [kind] = [arm for arm in get_args(kind) if arm is not NoneType]
    if get_origin(kind) is tuple:
        kind = get_args(kind)[0]
        made |= {"multiple": True} if names else {"nargs": -1, "metavar": f"{made['metavar']}..."}
    if kind is bool:
        made["is_flag"] = True
    else:
        made["type"] = click.Path(path_type=Path) if kind is Path else kind
    if parameter.default is parameter.empty:
        made["required"] = True
    else:
        made["default"] = parameter.default
        if not names:
            made["metavar"] = f"[{made['metavar']}]"
    return make([parameter.name, *names], **made)
