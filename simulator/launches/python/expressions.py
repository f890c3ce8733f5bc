"""The values of a script's expressions, as far as its own text says them."""

from __future__ import annotations

import ast
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.launches.interpolate import bounded
from rollcast.simulator.launches.pieces import Piece, Text, shown, unknown, why
from rollcast.simulator.launches.python import texts
from rollcast.simulator.launches.python.pure import (
    FUNCTIONS,
    MOST_LENGTH,
    computed,
    dotted,
    method,
    spelt,
)
from rollcast.simulator.launches.python.script import (
    Defined,
    Made,
    Parsed,
    Partly,
    Script,
    Shipped,
    Written,
)
from rollcast.simulator.launches.values import NOT_GIVEN, Unknown
from rollcast.simulator.stacks.settings import Place

_MOST_STEPS, _MOST_ROUNDS, _MOST_TURNS = 100_000, 2_000, 1_000
ENVIRONMENT = ("os.environ", "environ")
_ENVIRONMENT = ("os.environ.get", "os.getenv", "environ.get", "getenv")
_SWITCH = "get_bool_env_var"
_LOADS = re.compile(
    r"(?:\w+\.)?(?:yaml\.(?:safe_|full_|unsafe_)?load|json\.loads?|OmegaConf\.load|toml\w*\.loads?)"
)
_SAME = ("OmegaConf.to_container", "OmegaConf.create", "OmegaConf.to_object", "EasyDict", "Box")
_MOST_LOADED = 50
Load = Callable[[str], Mapping[str, Any] | None]
"""The settings of a file by its path, as the script has it; None where it is not there."""
_SPEC = re.compile(r"[^\d]{0,3}\d{0,3}[,_]?(?:\.\d{1,2})?[a-zA-Z%]?")
_NO_VALUE = "has no value in what was read"
_IN_A_RUN = "it is known in a run alone"
_OBJECTS = (Unknown, Made, Parsed, Defined)
Keywords = Mapping[str, tuple[Any, Place]]


class Expressions(ABC):
    """Gives expressions their values. name: of the file, for places. source: its text.
    environment: variables from outside. load: reads a configuration. What a call does is
    another's."""

    def __init__(
        self, name: str, source: str, environment: Mapping[str, str], shipped: Shipped, load: Load
    ) -> None:
        self.script = Script()
        self._load = load
        self._shipped = shipped
        self._name, self._environment = name, environment
        self._lines = source.split("\n")
        self._steps = self._rounds = self._loads = 0
        self._scopes: list[dict[str, Any]] = [{}]

    @abstractmethod
    def _called(
        self, node: ast.Call, name: str, held: Any, arguments: list[Any], keywords: Keywords
    ) -> Any:
        """What a call returns. held: of what it is a method, None of a function."""

    @abstractmethod
    def _enter(self, defined: Defined, arguments: Sequence[Any], keywords: Keywords) -> Any:
        """What a function of the script returns."""

    @abstractmethod
    def _bind(self, target: ast.expr, value: Any) -> None:
        """Sets what a name, an attribute or an item is."""

    def _place(self, node: ast.AST) -> Place:
        return Place(self._name, getattr(node, "lineno", 0))

    def _count(self) -> None:
        self._steps += 1
        if self._steps > _MOST_STEPS:
            raise ScenarioError(self._name, f"more than {_MOST_STEPS:,} expressions are followed")

    def _unread(self, node: ast.AST, what: str) -> None:
        note = f"{self._place(node)}: what {what} adds is not read"
        if note not in self.script.notes and len(self.script.notes) < 20:
            self.script.notes.append(note)

    def _value(self, node: ast.expr) -> Any:
        self._count()
        match node:
            case ast.Constant():
                return self._constant(node)
            case ast.Name():
                return self._named(node)
            case ast.List() | ast.Tuple() | ast.Set():
                return [one for item in node.elts for one in self._items(item)]
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
                return self._chosen(node)
            case ast.Subscript():
                return self._item(node)
            case ast.Await() | ast.Starred():
                return self._value(node.value)
            case ast.NamedExpr():
                value = self._value(node.value)
                self._bind(node.target, value)
                return value
            case ast.ListComp() | ast.GeneratorExp() | ast.SetComp():
                found = [self._value(node.elt) for _ in self._turns(node.generators)]
                return found if found else Unknown(ast.unparse(node)[:200], _IN_A_RUN)
            case _:
                return Unknown(ast.unparse(node)[:200], _IN_A_RUN)

    def _constant(self, node: ast.Constant) -> Any:
        if not isinstance(node.value, str) or not texts.is_command(node.value):
            return node.value
        lines = self._lines[node.lineno - 1 : node.end_lineno]
        return texts.written(node.value, lines, node.lineno, self._name)

    def _named(self, node: ast.Name) -> Any:
        if node.id == "__name__":
            return "__main__"
        for scope in reversed(self._scopes):
            if node.id in scope:
                return scope[node.id]
        return Unknown(node.id, f"{node.id} {_NO_VALUE}")

    def _items(self, node: ast.expr) -> list[Any]:
        """The values that an element of a list stands for."""
        value = self._value(node)
        return value if isinstance(node, ast.Starred) and isinstance(value, list) else [value]

    def _mapping(self, node: ast.Dict) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in zip(node.keys, node.values, strict=True):
            held = self._value(value)
            if key is None:
                found.update(held if isinstance(held, dict) else {})
                continue
            name = self._value(key)
            if isinstance(name, str):
                found[str(name)] = held
        return found

    def _turns(self, generators: Sequence[ast.comprehension]) -> Iterator[None]:
        """The turns of a comprehension over one known list, none for any other."""
        listed = self._listed(self._value(generators[0].iter)) if len(generators) == 1 else None
        if listed is None:
            return
        self._scopes.append({})
        try:
            for value in listed:
                self._bind(generators[0].target, value)
                tests = [self._value(test) for test in generators[0].ifs]
                if all(not isinstance(test, _OBJECTS) and test for test in tests):
                    yield
        finally:
            self._scopes.pop()

    def _listed(self, value: Any) -> list[Any] | None:
        """What a loop goes through, None where that is not known or is too long."""
        listed = list(value) if isinstance(value, list | dict) else None
        if listed is None or len(listed) > _MOST_TURNS:
            return None
        self._rounds += len(listed)
        return listed if self._rounds <= _MOST_ROUNDS else None

    # Texts

    def _joined(self, node: ast.JoinedStr) -> Any:
        line, parts, apart = node.lineno, [], set()
        for at, part in enumerate(node.values):
            if isinstance(part, ast.Constant):
                lines = self._lines[line - 1 : node.end_lineno]
                written = texts.written(str(part.value), lines, line, self._name)
                line = written.pieces[-1].place.line
                parts.append(written.pieces)
                continue
            assert isinstance(part, ast.FormattedValue)
            value = self._formatted(part)
            pieces = texts.pieces_of(value, Place(self._name, line))
            if pieces is None or (isinstance(value, Unknown) and not isinstance(value, Partly)):
                text = "{" + ast.unparse(part.value)[:200] + "}"
                reason = "it is no constant" if pieces is None else why(pieces)
                pieces = unknown(text, Place(self._name, line), reason)
                if _apart(node.values, at):
                    apart.add(at)
            parts.append(pieces)
        whole = tuple(piece for text in parts for piece in text)
        if not texts.is_command(shown(whole)):
            return _path_of(whole)
        for at in apart:  # any number of words
            self._unread(node, shown(parts[at]))
        return self._command(
            tuple(p for at, text in enumerate(parts) if at not in apart for p in text)
        )

    def _formatted(self, part: ast.FormattedValue) -> Any:
        value = self._value(part.value)
        if part.format_spec is None or isinstance(value, _OBJECTS):
            return value
        spec = self._value(part.format_spec)
        try:
            return format(value, spec) if _SPEC.fullmatch(str(spec)) else value
        except (TypeError, ValueError):
            return value

    def _command(self, pieces: Text) -> Any:
        if sum(len(piece.text) for piece in pieces) > 10 * MOST_LENGTH:
            return Unknown(shown(pieces)[:200], "it is too long")
        return texts.text_of(pieces)

    def _added(self, node: ast.BinOp, left: Any, right: Any) -> Any:
        """One text of a command after another; what is not known may be any number of words."""
        parts: list[Text] = []
        for value, said in ((left, node.left), (right, node.right)):
            part = texts.pieces_of(value, self._place(node))
            if part is None or (isinstance(value, Unknown) and not isinstance(value, Partly)):
                self._unread(node, ast.unparse(said)[:200])
            else:
                parts.append(part)
        return self._command(tuple(piece for part in parts for piece in part))

    # Attributes, items, operators

    def _attribute(self, node: ast.Attribute) -> Any:
        name = dotted(node)
        if name.startswith("torch.") and name.count(".") == 1:
            return name.removeprefix("torch.")
        held = self._value(node.value)
        if isinstance(held, Parsed | Made):
            return self._field(held, node.attr, name)
        if isinstance(held, Defined) and node.attr in held.fields:
            return held.fields[node.attr]
        if isinstance(held, dict) and node.attr in held:  # OmegaConf's and others'
            return held[node.attr]
        if (constant := self._shipped.constant(name)) is not None:
            return constant
        return Unknown(name or ast.unparse(node)[:200], _IN_A_RUN)

    def _field(self, held: Parsed | Made, attribute: str, name: str) -> Any:
        """An attribute of arguments, or of what a call returned."""
        if isinstance(held, Parsed):
            if attribute in held.values:
                return held.values[attribute]
        elif attribute in held.attributes:
            return held.attributes[attribute][0]
        elif attribute in held.given:
            return held.given[attribute][0]
        if held.of is not None:
            if isinstance(held, Made) and attribute in held.of.fields:
                at = list(held.of.fields).index(attribute)
                return held.given[at][0] if at in held.given else held.of.fields[attribute]
            found = held.of.methods.get(attribute)
            if found is not None and found.is_property:
                return self._enter(found, [held], {})
        if isinstance(held, Parsed):
            return Unknown(name, f"{attribute} {NOT_GIVEN}")
        return Unknown(name, _IN_A_RUN)

    def _item(self, node: ast.Subscript) -> Any:
        if dotted(node.value) in ENVIRONMENT:
            return self._outside([self._value(node.slice)])
        held, key = self._value(node.value), self._value(node.slice)
        if isinstance(held, dict | list) and isinstance(key, str | int):
            try:
                return held[key]  # type: ignore[index]
            except (LookupError, TypeError):
                pass
        reason = held.why if isinstance(held, Unknown) else _IN_A_RUN
        return Unknown(ast.unparse(node)[:200], reason)

    def _chosen(self, node: ast.IfExp) -> Any:
        test = self._value(node.test)
        if not isinstance(test, Unknown | Made):
            return self._value(node.body if test else node.orelse)
        reason = f"it depends on {self._place(node)}"
        one, other = self._value(node.body), self._value(node.orelse)
        either = texts.either(one, other, reason, self._place(node))
        return Unknown(ast.unparse(node)[:200], reason) if either is None else either

    def _operated(self, node: ast.expr) -> Any:
        try:
            return self._operation(node)
        except (TypeError, ValueError, ArithmeticError):
            return Unknown(ast.unparse(node)[:200], "it has no value")

    def _operation(self, node: ast.expr) -> Any:
        if isinstance(node, ast.BinOp):
            values = [self._value(node.left), self._value(node.right)]
            if isinstance(node.op, ast.Add) and any(
                isinstance(v, Written | Partly) for v in values
            ):
                return self._added(node, *values)
            root = isinstance(node.op, ast.Div) and isinstance(values[0], Unknown | Made)
            if root and isinstance(values[1], str):  # of a path
                return f"{{{ast.unparse(node.left)[:100]}}}/{values[1]}"[:MOST_LENGTH]
        elif isinstance(node, ast.BoolOp):
            values = [self._value(item) for item in node.values]
            first = values[0]
            given = not isinstance(first, Unknown) or not first.why.endswith(_NO_VALUE)
            if isinstance(node.op, ast.Or) and not given and len(values) == 2:
                return values[1]
        elif isinstance(node, ast.Compare):
            values = [self._value(item) for item in (node.left, *node.comparators)]
        else:
            assert isinstance(node, ast.UnaryOp)
            values = [self._value(node.operand)]
        for value in values:
            if isinstance(value, Unknown):
                return Unknown(ast.unparse(node)[:200], value.why)
            if isinstance(value, Made | Defined | Parsed):
                return Unknown(ast.unparse(node)[:200], _IN_A_RUN)
        return computed(node, values)

    # Calls

    def _call(self, node: ast.Call) -> Any:
        name = dotted(node.func)
        held = self._value(node.func.value) if isinstance(node.func, ast.Attribute) else None
        if name == "map" and len(node.args) == 2 and dotted(node.args[0]) in FUNCTIONS:
            items = self._listed(self._value(node.args[1])) or []
            return [self._pure(node, dotted(node.args[0]), [item]) for item in items]
        arguments = [one for item in node.args for one in self._items(item)]
        keywords: dict[str, tuple[Any, Place]] = {}
        for word in node.keywords:
            value, place = self._value(word.value), self._place(word.value)
            if word.arg is not None:
                keywords[word.arg] = value, place
            elif isinstance(value, dict):
                keywords.update({key: (inner, place) for key, inner in value.items()})
        if name == "dict" and not arguments:
            return {key: value for key, (value, _) in keywords.items()}
        if name in FUNCTIONS and not keywords:
            return self._pure(node, name, arguments)
        if name in _ENVIRONMENT:
            return self._outside(arguments)
        if name.endswith(_SWITCH):
            given = self._outside([*arguments, "false"][:2])
            return given if isinstance(given, Unknown) else str(given).lower() in ("true", "1")
        if name in ("re.search", "re.match", "re.fullmatch") and len(arguments) == 2:
            return self._searched(node, name, *arguments)
        if name.endswith("path.join"):
            return self._path(node, arguments)
        if name in ("Path", "pathlib.Path") and len(arguments) == 1:
            return arguments[0]
        own = self._of_file(node, name, held, arguments)
        own = self._of_text(node, name, held, arguments) if own is None else own
        return self._called(node, name, held, arguments, keywords) if own is None else own

    def _of_file(self, node: ast.Call, name: str, held: Any, arguments: list[Any]) -> Any:
        """What is read of a configuration's file: a mapping, or the opened file; None for other
        calls."""
        last, first = name.rpartition(".")[2], arguments[0] if arguments else None
        if last in ("open", "read_text") and isinstance(held, str):
            place = self._place(node)
            return Made("open", place, {0: (held, place)})
        if last == "read" and isinstance(held, Made) and held.name == "open":
            return held
        if name.endswith(_SAME) and isinstance(first, dict | Unknown):
            return first
        if not _LOADS.fullmatch(name) or not arguments:
            return None
        path = first.argument(0) if isinstance(first, Made) and first.name == "open" else first
        self._loads += 1
        if isinstance(path, str) and self._loads <= _MOST_LOADED:
            found = self._load(str(path))
            if found is not None:
                return dict(found)
            reason = f"{path} is not read here"
        else:
            reason = path.why if isinstance(path, Unknown) else _IN_A_RUN
        return Unknown(ast.unparse(node)[:200], reason)

    def _of_text(self, node: ast.Call, name: str, held: Any, arguments: list[Any]) -> Any:
        """What functions and methods of texts, lists and mappings give; None for others."""
        last = name.rpartition(".")[2]
        subject = arguments[0] if arguments else None
        if name in ("shlex.split", "textwrap.dedent", "dedent", "shlex.join"):
            held, last = subject, last
        if isinstance(held, Written | Partly):
            if last == "split":
                return [texts.text_of(word) for word in texts.words(held.pieces)]
            if last in ("strip", "rstrip", "lstrip", "dedent", "replace") and not (
                last == "replace" and any(str(one).strip() not in ("", "\\") for one in arguments)
            ):
                return held
        if last == "join" and isinstance(held, str) and isinstance(subject, list):
            return self._together(node, held, subject)
        if name == "shlex.join" and isinstance(subject, list):
            return self._together(node, " ", subject)
        if isinstance(held, list) and last in ("append", "extend") and len(arguments) == 1:
            more = subject if last == "extend" else [subject]
            assert isinstance(node.func, ast.Attribute)
            if isinstance(more, list):
                self._bind(node.func.value, [*held, *more])
            else:
                self._unread(node, ast.unparse(node.args[0])[:200])
            return False
        if isinstance(held, str | dict):
            try:
                return method(held, last, arguments)
            except (ValueError, TypeError, LookupError):
                return None
        return None

    def _together(self, node: ast.Call, between: str, items: list[Any]) -> Any:
        pieces: list[Piece] = []
        for item in items:
            part = texts.pieces_of(item, self._place(node))
            if part is None:
                part = unknown("{" + spelt(item) + "}", self._place(node), "it is no constant")
            pieces.extend((*((Piece(between, part[0].place),) if pieces else ()), *part))
        whole = tuple(pieces)
        if why(whole) or any(isinstance(item, Written | Partly) for item in items):
            return texts.text_of(whole)
        return shown(whole)

    def _pure(self, node: ast.Call, name: str, arguments: list[Any]) -> Any:
        try:
            if any(isinstance(one, _OBJECTS) for one in arguments):
                raise ValueError
            if name == "str" and len(arguments) == 1 and isinstance(arguments[0], str):
                return arguments[0]
            result = FUNCTIONS[name](*arguments)
            return result if isinstance(result, str | bool | list) else bounded(result)
        except (TypeError, ValueError, ArithmeticError):
            if name == "str" and len(arguments) == 1 and isinstance(arguments[0], Unknown):
                return arguments[0]
            return Unknown(ast.unparse(node)[:200], _IN_A_RUN)

    def _searched(self, node: ast.Call, name: str, form: Any, text: Any) -> Any:
        """What a pattern finds, for patterns that a search always ends with."""
        able = isinstance(form, str) and len(form) < 60 and len(re.findall(r"[*+?{]", form)) < 2
        if not able or not isinstance(text, str) or len(text) > 200:
            return Unknown(ast.unparse(node)[:200], _IN_A_RUN)
        try:
            match = getattr(re, name.removeprefix("re."))(form, text)
        except re.error:
            return Unknown(ast.unparse(node)[:200], "its pattern is not read")
        return None if match is None else match[0]

    def _outside(self, arguments: list[Any]) -> Any:
        name = arguments[0] if arguments and isinstance(arguments[0], str) else "it"
        if name in self._environment:
            return self._environment[name]
        if len(arguments) > 1:
            return arguments[1]
        return Unknown(name, f"{name} {_NO_VALUE}")

    def _path(self, node: ast.Call, arguments: list[Any]) -> Any:
        last = arguments[-1] if arguments else None
        if not isinstance(last, str) or not last:
            return Unknown(ast.unparse(node)[:200], _IN_A_RUN)
        known = [one if isinstance(one, str) else "{" + spelt(one) + "}" for one in arguments]
        return "/".join(known)[:MOST_LENGTH]


def _apart(parts: Sequence[ast.expr], at: int) -> bool:
    """Whether a part of a text stands between blanks, and follows no option."""

    def text(number: int) -> str:
        part = parts[number] if 0 <= number < len(parts) else None
        return str(part.value) if isinstance(part, ast.Constant) else " "

    before, after = text(at - 1), text(at + 1)
    return not before.strip() and before[-1:].isspace() and after[:1].isspace()


def _path_of(pieces: Text) -> Any:
    """A text that is no command's: a path of which the end is known is a value."""
    text, reason = shown(pieces), why(pieces).strip()
    if len(text) > MOST_LENGTH:
        return Unknown(text[:200], "it is too long")
    last = max((at for at, piece in enumerate(pieces) if piece.why), default=-1)
    tail = "".join(piece.text for piece in pieces[last + 1 :])
    if reason and not re.fullmatch(r"(?:[^\s{}]*/)[\w.+@-]*\w", tail):
        return Unknown(text, reason)
    return text
