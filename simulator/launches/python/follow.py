"""Goes through a script of Python without running it, for the calls it makes."""

from __future__ import annotations

import ast
import operator
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.launches.interpolate import bounded
from rollcast.simulator.launches.python.values import Defined, Made, Parsed
from rollcast.simulator.launches.values import Unknown
from rollcast.simulator.stacks.settings import Place

_MOST_TEXT, _MOST_STEPS, _MOST_LENGTH, _DEEPEST = 1_000_000, 100_000, 10_000, 8
_OPERATORS: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    **{ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul},
    **{ast.Div: operator.truediv, ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod},
}
_COMPARED: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    **{ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le},
    **{ast.Gt: operator.gt, ast.GtE: operator.ge},
    **{ast.Is: operator.is_, ast.IsNot: operator.is_not},
}
_PURE: dict[str, Callable[..., Any]] = {
    **{"int": int, "float": float, "str": str, "bool": bool, "max": max, "min": min},
    **{"len": len, "round": round, "abs": abs},
}
_ENVIRONMENT = ("os.environ.get", "os.getenv", "environ.get", "getenv")
_PARSES = ("parse_args", "parse_known_args", "parse_args_and_config", "parse_args_into_dataclasses")
_SHELL_LINE = re.compile(r"^(\s*)[!%].*$", re.MULTILINE)
_Return = tuple[bool, Any]


@dataclass
class Script:
    """What a script was found to do. calls: in the order of reading. imports: dotted names. hydra:
    folder and name of the configuration that it takes by itself."""

    calls: list[Made] = field(default_factory=list)
    imports: set[str] = field(default_factory=set)
    hydra: tuple[str, str] | None = None


def follow(
    text: str,
    name: str,
    arguments: Mapping[str, Any],
    environment: Mapping[str, str],
) -> Script:
    """Follows a script. name: of the file, for places. arguments: of its command line, by name.
    Raises ScenarioError, with file and line, for what is no Python."""
    if len(text) > _MOST_TEXT:
        raise ScenarioError(name, f"is longer than {_MOST_TEXT:,} characters; is it a launch?")
    tree = _parsed(text, name)
    follower = _Follower(name, arguments, environment)
    try:
        follower.module(tree)
    except RecursionError:
        raise ScenarioError(name, "is nested too deeply") from None
    return follower.script


def _parsed(text: str, name: str) -> ast.Module:
    """A script's tree; lines of a notebook for the shell count as none."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for tried in (text, _SHELL_LINE.sub(r"\1pass", text)):
            try:
                return ast.parse(tried)
            except SyntaxError as error:
                wrong = error
            except (ValueError, RecursionError, MemoryError):
                raise ScenarioError(name, "is nested too deeply for Python") from None
    raise ScenarioError(str(Place(name, wrong.lineno or 0)), f"is no Python: {wrong.msg}")


class _Follower:
    def __init__(
        self, name: str, arguments: Mapping[str, Any], environment: Mapping[str, str]
    ) -> None:
        self.script = Script()
        self._name, self._arguments, self._environment = name, arguments, environment
        self._steps = self._depth = 0
        self._scopes: list[dict[str, Any]] = [{}]
        self._called: set[str] = set()
        self._parsers: dict[str, Any] = {}

    def module(self, tree: ast.Module) -> None:
        """All statements, then the functions that none of them calls."""
        self._block(tree.body)
        for defined in list(self._scopes[0].values()):
            if isinstance(defined, Defined) and defined.node.name not in self._called:
                self._enter(defined, [], {})

    def _place(self, node: ast.AST) -> Place:
        return Place(self._name, getattr(node, "lineno", 0))

    def _count(self) -> None:
        self._steps += 1
        if self._steps > _MOST_STEPS:
            raise ScenarioError(self._name, f"more than {_MOST_STEPS:,} expressions are followed")

    # Statements

    def _block(self, statements: Sequence[ast.stmt]) -> _Return:
        for statement in statements:
            done, value = self._statement(statement)
            if done:
                return True, value
        return False, None

    def _statement(self, node: ast.stmt) -> _Return:
        self._count()
        match node:
            case ast.Import():
                self.script.imports.update(alias.name for alias in node.names)
            case ast.ImportFrom():
                self.script.imports.add(node.module or "")
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self._scopes[-1][node.name] = Defined(node)
                self._decorated(node)
            case ast.ClassDef():
                self._scopes[-1][node.name] = Defined(node, self._fields(node))
            case ast.Assign():
                value = self._value(node.value)
                for target in node.targets:
                    self._bind(target, value)
            case ast.AnnAssign() if node.value is not None:
                self._bind(node.target, self._value(node.value))
            case ast.AugAssign():
                joined = ast.BinOp(node.target, node.op, node.value)
                self._bind(node.target, self._value(ast.copy_location(joined, node)))
            case ast.Expr():
                self._value(node.value)
            case ast.Return():
                return True, None if node.value is None else self._value(node.value)
            case ast.If():
                return self._if(node)
            case ast.For() | ast.AsyncFor():
                unknown = Unknown(ast.unparse(node.iter)[:100], "it is one of a loop's")
                self._bind(node.target, unknown)
                self._block(node.body)
            case ast.While():
                self._block(node.body)
            case ast.With() | ast.AsyncWith():
                for item in node.items:
                    value = self._value(item.context_expr)
                    if item.optional_vars is not None:
                        self._bind(item.optional_vars, value)
                return self._block(node.body)
            case ast.Try():
                done = self._block(node.body)
                self._block(node.finalbody)
                return done
            case _:
                pass
        return False, None

    def _if(self, node: ast.If) -> _Return:
        test = self._value(node.test)
        if not isinstance(test, Unknown | Made | Defined | Parsed):
            return self._block(node.body if test else node.orelse)
        before = [dict(scope) for scope in self._scopes]
        self._block(node.body)
        first = [dict(scope) for scope in self._scopes]
        self._scopes = before
        self._block(node.orelse)
        why = f"it depends on {self._place(node)}"
        for scope, other in zip(self._scopes, first, strict=True):
            for name, value in other.items():
                held = scope.get(name, value)
                if isinstance(value, Made | Defined | Parsed):
                    scope[name] = value
                elif isinstance(held, Unknown) or held != value:
                    scope[name] = Unknown(name, why)
                else:
                    scope[name] = value
        return False, None

    def _bind(self, target: ast.expr, value: Any) -> None:
        if isinstance(target, ast.Name):
            self._scopes[-1][target.id] = value
        elif isinstance(target, ast.Tuple | ast.List):
            several = isinstance(value, list | tuple) and len(value) == len(target.elts)
            for number, one in enumerate(target.elts):
                part = value[number] if several else value if not number else None
                if not several and not isinstance(value, Made):
                    part = Unknown(ast.unparse(one), "it is one of several values")
                elif not several and number:
                    part = Unknown(ast.unparse(one), f"what {value.name} returns")
                self._bind(one, part)
        elif isinstance(target, ast.Attribute):
            held = self._value(target.value)
            if isinstance(held, Made):
                held.attributes[target.attr] = value, self._place(target)
            elif isinstance(held, Parsed):
                held.values[target.attr] = value
        elif isinstance(target, ast.Subscript):
            held = self._value(target.value)
            key = self._value(target.slice)
            if isinstance(held, dict) and isinstance(key, str):
                held[key] = value

    def _fields(self, node: ast.ClassDef) -> dict[str, Any]:
        fields: dict[str, Any] = {}
        for statement in node.body:
            if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                value = None if statement.value is None else self._value(statement.value)
                if isinstance(value, Made) and value.name.endswith("field"):
                    value = value.argument("default")
                fields[statement.target.id] = value
        return fields

    def _decorated(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        for decorator in node.decorator_list:
            if not isinstance(decorator, ast.Call) or _dotted(decorator.func) != "hydra.main":
                continue
            values = {word.arg: self._value(word.value) for word in decorator.keywords}
            folder, name = values.get("config_path"), values.get("config_name")
            if isinstance(name, str):
                self.script.hydra = (folder if isinstance(folder, str) else ".", name)

    # Expressions

    def _value(self, node: ast.expr) -> Any:
        self._count()
        match node:
            case ast.Constant():
                return node.value
            case ast.Name():
                return self._named(node)
            case ast.List() | ast.Tuple() | ast.Set():
                return [self._value(item) for item in node.elts]
            case ast.Dict():
                return self._mapping(node)
            case ast.JoinedStr():
                return self._joined(node)
            case ast.Call():
                return self._call(node)
            case ast.Attribute():
                return self._attribute(node)
            case ast.BinOp() | ast.UnaryOp() | ast.BoolOp() | ast.Compare():
                return self._operated(node)
            case ast.IfExp():
                test = self._value(node.test)
                if isinstance(test, Unknown | Made):
                    return Unknown(ast.unparse(node)[:200], f"it depends on {self._place(node)}")
                return self._value(node.body if test else node.orelse)
            case ast.Subscript():
                return self._item(node)
            case ast.Await() | ast.Starred():
                return self._value(node.value)
            case ast.NamedExpr():
                value = self._value(node.value)
                self._bind(node.target, value)
                return value
            case _:
                return Unknown(ast.unparse(node)[:200], "it is known in a run alone")

    def _named(self, node: ast.Name) -> Any:
        if node.id == "__name__":
            return "__main__"
        for scope in reversed(self._scopes):
            if node.id in scope:
                return scope[node.id]
        return Unknown(node.id, f"{node.id} has no value in what was read")

    def _mapping(self, node: ast.Dict) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in zip(node.keys, node.values, strict=True):
            held = self._value(value)
            if key is None:
                found.update(held if isinstance(held, dict) else {})
                continue
            name = self._value(key)
            if isinstance(name, str):
                found[name] = held
        return found

    def _joined(self, node: ast.JoinedStr) -> Any:
        text, tail, why = "", "", ""
        for part in node.values:
            inner = part.value if isinstance(part, ast.FormattedValue) else part
            value = self._value(inner)
            if isinstance(value, str | int | float):
                text += str(value)
                tail += str(value)
            else:
                text += "{" + ast.unparse(inner) + "}"
                tail = ""
                why = why or (value.why if isinstance(value, Unknown) else "it is no constant")
        if len(text) > _MOST_LENGTH:
            return Unknown(text[:200], "it is too long")
        if why and not re.fullmatch(r"(?:[^\s{}]*/)[\w.+@-]*\w", tail):
            return Unknown(text, why)
        return text

    def _attribute(self, node: ast.Attribute) -> Any:
        dotted = _dotted(node)
        if dotted.startswith("torch.") and dotted.count(".") == 1:
            return dotted.removeprefix("torch.")
        held = self._value(node.value)
        if isinstance(held, Parsed):
            if node.attr in held.values:
                return held.values[node.attr]
            return Unknown(dotted, f"{node.attr} is an argument that is not given")
        if isinstance(held, Made):
            if node.attr in held.attributes:
                return held.attributes[node.attr][0]
            if node.attr in held.given:
                return held.given[node.attr][0]
        return Unknown(dotted or ast.unparse(node)[:200], "it is known in a run alone")

    def _item(self, node: ast.Subscript) -> Any:
        if _dotted(node.value) in ("os.environ", "environ"):
            return self._outside([self._value(node.slice)])
        held, key = self._value(node.value), self._value(node.slice)
        if isinstance(held, dict | list) and isinstance(key, str | int):
            try:
                return held[key]  # type: ignore[index]
            except (LookupError, TypeError):
                pass
        return Unknown(ast.unparse(node)[:200], "it is known in a run alone")

    def _operated(self, node: ast.expr) -> Any:
        try:
            return self._operation(node)
        except (TypeError, ValueError, ArithmeticError):
            return Unknown(ast.unparse(node)[:200], "it has no value")

    def _operation(self, node: ast.expr) -> Any:
        if isinstance(node, ast.BinOp):
            values = [self._value(node.left), self._value(node.right)]
        elif isinstance(node, ast.BoolOp):
            values = [self._value(item) for item in node.values]
        elif isinstance(node, ast.Compare):
            values = [self._value(item) for item in (node.left, *node.comparators)]
        else:
            assert isinstance(node, ast.UnaryOp)
            values = [self._value(node.operand)]
        for value in values:
            if isinstance(value, Unknown):
                return Unknown(ast.unparse(node)[:200], value.why)
            if isinstance(value, Made | Defined | Parsed):
                return Unknown(ast.unparse(node)[:200], "it is known in a run alone")
        return _computed(node, values)

    # Calls

    def _call(self, node: ast.Call) -> Any:
        name = _dotted(node.func)
        arguments: list[Any] = []
        for item in node.args:
            value = self._value(item)
            spread = isinstance(item, ast.Starred) and isinstance(value, list)
            arguments.extend(value if spread else [value])
        keywords: dict[str, tuple[Any, Place]] = {}
        for word in node.keywords:
            value, place = self._value(word.value), self._place(word.value)
            if word.arg is not None:
                keywords[word.arg] = value, place
            elif isinstance(value, dict):
                keywords.update({key: (inner, place) for key, inner in value.items()})
        if name == "dict" and not arguments:
            return {key: value for key, (value, _) in keywords.items()}
        if name in _PURE and not keywords:
            return self._pure(node, name, arguments)
        if name in _ENVIRONMENT:
            return self._outside(arguments)
        if name.endswith("path.join"):
            return self._path(node, arguments)
        defined = self._named(node.func) if isinstance(node.func, ast.Name) else None
        if isinstance(defined, Defined) and not isinstance(defined.node, ast.ClassDef):
            return self._enter(defined, arguments, keywords)
        if name.rpartition(".")[2] in _PARSES:
            return self._parsed(node, name)
        made = Made(name, self._place(node))
        made.given.update({at: (value, made.place) for at, value in enumerate(arguments)})
        made.given.update(keywords)
        if isinstance(node.func, ast.Attribute):
            owner = self._scope_of(node.func.value)
            if name.endswith(".add_argument") and isinstance(owner, Made):
                self._add_argument(owner, arguments, keywords)
                return None
        self.script.calls.append(made)
        return made

    def _scope_of(self, node: ast.expr) -> Any:
        return self._named(node) if isinstance(node, ast.Name) else None

    def _pure(self, node: ast.Call, name: str, arguments: list[Any]) -> Any:
        try:
            if any(isinstance(one, Unknown | Made | Parsed | Defined) for one in arguments):
                raise ValueError
            result = _PURE[name](*arguments)
            return result if isinstance(result, str | bool) else bounded(result)
        except (TypeError, ValueError, ArithmeticError):
            return Unknown(ast.unparse(node)[:200], "it is known in a run alone")

    def _outside(self, arguments: list[Any]) -> Any:
        name = arguments[0] if arguments and isinstance(arguments[0], str) else "it"
        if name in self._environment:
            return self._environment[name]
        if len(arguments) > 1:
            return arguments[1]
        return Unknown(name, f"{name} has no value in what was read")

    def _path(self, node: ast.Call, arguments: list[Any]) -> Any:
        last = arguments[-1] if arguments else None
        if not isinstance(last, str) or not last:
            return Unknown(ast.unparse(node)[:200], "it is known in a run alone")
        known = [one if isinstance(one, str) else "{" + _shown(one) + "}" for one in arguments]
        return "/".join(known)[:_MOST_LENGTH]

    def _add_argument(
        self, parser: Made, arguments: list[Any], keywords: Mapping[str, tuple[Any, Place]]
    ) -> None:
        """An argument of the script's own command line, with its default."""
        names = [one for one in arguments if isinstance(one, str)]
        if not names:
            return
        long = next((name for name in names if name.startswith("--")), names[0])
        dest = keywords.get("dest", (long.lstrip("-").replace("-", "_"), None))[0]
        default = keywords["default"][0] if "default" in keywords else None
        if default is None and keywords.get("action", ("",))[0] == "store_true":
            default = False
        if "default" not in keywords and default is None:
            default = Unknown(str(dest), f"{long} is an argument that is not given")
        for name in (str(dest), long.lstrip("-"), long.lstrip("-").replace("-", "_")):
            if name in self._arguments:
                default = self._arguments[name]
        parser.attributes[str(dest)] = default, parser.place

    def _parsed(self, node: ast.Call, name: str) -> Any:
        """The arguments that a parser gives."""
        held = self._scope_of(node.func.value) if isinstance(node.func, ast.Attribute) else None
        made = held if isinstance(held, Made) else None
        if made is None and isinstance(node.func, ast.Attribute):
            inner = self._value(node.func.value)
            made = inner if isinstance(inner, Made) else None
        if made is None:
            return Unknown(ast.unparse(node)[:200], "the arguments are known in a run alone")
        if name.endswith(("parse_args", "parse_known_args")):
            return Parsed({key: value for key, (value, _) in made.attributes.items()})
        classes = made.argument(0) if 0 in made.given else made.argument("dataclass_types")
        several = classes if isinstance(classes, list) else [classes]
        found = []
        for one in several:
            fields = dict(one.fields) if isinstance(one, Defined) else {}
            given = {k.replace("-", "_"): v for k, v in self._arguments.items()}
            fields.update({k: v for k, v in given.items() if k in fields or not fields})
            found.append(Parsed(fields))
        return found

    def _enter(
        self,
        defined: Defined,
        arguments: Sequence[Any],
        keywords: Mapping[str, tuple[Any, Place]],
    ) -> Any:
        """What a function of the script returns."""
        node = defined.node
        if isinstance(node, ast.ClassDef):
            return None
        self._called.add(node.name)
        unknown = Unknown(node.name, "it is known in a run alone")
        if self._depth >= _DEEPEST:
            return unknown
        scope: dict[str, Any] = {}
        names = [one.arg for one in (*node.args.posonlyargs, *node.args.args)]
        defaults = node.args.defaults
        for name, default in zip(names[len(names) - len(defaults) :], defaults, strict=True):
            scope[name] = self._value(default)
        for one, value in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True):
            if value is not None:
                scope[one.arg] = self._value(value)
        scope.update(zip(names, arguments, strict=False))
        scope.update({name: value for name, (value, _) in keywords.items()})
        for name in (*names, *(one.arg for one in node.args.kwonlyargs)):
            scope.setdefault(name, Unknown(name, f"{name} is what {node.name} is called with"))
        self._depth += 1
        self._scopes.append(scope)
        try:
            done, value = self._block(node.body)
        finally:
            self._scopes.pop()
            self._depth -= 1
        return value if done else None


def _computed(node: ast.expr, values: list[Any]) -> Any:
    """An operator on known values. Raises TypeError, ValueError, ArithmeticError."""
    if isinstance(node, ast.BinOp):
        left, right = values
        if isinstance(left, str) and isinstance(right, str) and isinstance(node.op, ast.Add):
            if len(left) + len(right) > _MOST_LENGTH:
                raise ValueError
            return left + right
        if isinstance(left, list) and isinstance(right, list) and isinstance(node.op, ast.Add):
            if len(left) + len(right) > _MOST_LENGTH:
                raise ValueError
            return [*left, *right]
        if not all(isinstance(one, int | float) for one in values):
            raise TypeError
        if isinstance(node.op, ast.Pow):
            if abs(right) > 64 or abs(left) > 10**6:
                raise ValueError
            return bounded(left**right)
        if type(node.op) not in _OPERATORS:
            raise TypeError
        return bounded(_OPERATORS[type(node.op)](left, right))
    if isinstance(node, ast.UnaryOp):
        if isinstance(node.op, ast.Not):
            return not values[0]
        if not isinstance(values[0], int | float):
            raise TypeError
        return -values[0] if isinstance(node.op, ast.USub) else values[0]
    if isinstance(node, ast.BoolOp):
        result = values[0]
        for value in values[1:]:
            if bool(result) != isinstance(node.op, ast.And):
                break
            result = value
        return result
    assert isinstance(node, ast.Compare)
    for op, left, right in zip(node.ops, values, values[1:], strict=False):
        if isinstance(op, ast.In | ast.NotIn):
            holds = (left in right) == isinstance(op, ast.In)
        else:
            holds = bool(_COMPARED[type(op)](left, right))
        if not holds:
            return False
    return True


def _dotted(node: ast.expr) -> str:
    """``a.b.c`` of names; of anything else its last parts."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if isinstance(node, ast.Name):
        parts.append(node.id)
    return ".".join(reversed(parts))


def _shown(value: Any) -> str:
    return value.text if isinstance(value, Unknown) else str(value)[:100]
