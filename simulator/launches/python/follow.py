"""Goes through a script of Python without running it, for the calls it makes."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.launches.python import arguments as command_line
from rollcast.simulator.launches.python import commands, texts
from rollcast.simulator.launches.python.expressions import ENVIRONMENT, Expressions, Keywords, Load
from rollcast.simulator.launches.python.notebook import is_cell, without_shell
from rollcast.simulator.launches.python.pure import dotted
from rollcast.simulator.launches.python.script import Defined, Made, Parsed, Script, Shipped
from rollcast.simulator.launches.values import Unknown
from rollcast.simulator.stacks.settings import Place

_MOST_TEXT, _DEEPEST = 1_000_000, 8
_MOST_COMMANDS = 200
_Return = tuple[bool, Any]
_GOES_ON: _Return = (False, None)


class _Raised(Exception):  # noqa: N818
    """``raise``: of several ways that of nobody who starts it."""


class _Jump(Exception):  # noqa: N818
    """``break`` and ``continue``."""

    def __init__(self, again: bool) -> None:
        self.again = again


def follow(
    text: str,
    name: str,
    arguments: Mapping[str, Any],
    environment: Mapping[str, str],
    shipped: Shipped | None = None,
    load: Load = lambda path: None,
) -> Script:
    """Follows a script. name: of the file, for places. arguments: of its command line, by name.
    shipped: what stacks give to it. load: reads a configuration that it names. Raises
    ScenarioError, with file and line, for what is no Python."""
    if len(text) > _MOST_TEXT:
        raise ScenarioError(name, f"is longer than {_MOST_TEXT:,} characters; is it a launch?")
    tree = _parsed(text, name)
    follower = _Follower(name, text, arguments, environment, shipped or Shipped(), load)
    try:
        follower.module(tree)
    except RecursionError:
        raise ScenarioError(name, "is nested too deeply") from None
    _given_outside(follower.script, environment, Place(name))
    return follower.script


def _given_outside(script: Script, environment: Mapping[str, str], place: Place) -> None:
    """Variables that a script starts with and does not set itself, as those that it sets."""
    own = {name for made in script.calls if made.name == ENVIRONMENT[0] for name in made.given}
    left = {name: value for name, value in environment.items() if name not in own}
    if left:
        given: dict[int | str, Any] = {name: (value, place) for name, value in left.items()}
        script.calls.append(Made(ENVIRONMENT[0], place, given))


def _parsed(text: str, name: str) -> ast.Module:
    """A script's tree; lines of a notebook for the shell count as none."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for tried in (text, without_shell(text)):
            try:
                return ast.parse(tried)
            except SyntaxError as error:
                wrong = error
            except (ValueError, RecursionError, MemoryError):
                raise ScenarioError(name, "is nested too deeply for Python") from None
    raise ScenarioError(str(Place(name, wrong.lineno or 0)), f"is no Python: {wrong.msg}")


class _Follower(Expressions):
    def __init__(
        self,
        name: str,
        source: str,
        arguments: Mapping[str, Any],
        environment: Mapping[str, str],
        shipped: Shipped,
        load: Load,
    ) -> None:
        super().__init__(name, source, environment, shipped, load)
        self._arguments = {key.replace("-", "_"): value for key, value in arguments.items()}
        self._depth = 0
        self._maybe = ""
        self._entered: set[str] = set()

    def module(self, tree: ast.Module) -> None:
        """All statements, then the functions that nothing calls, then those that nothing did."""
        self._block(tree.body)
        called = {dotted(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
        for names in (called, self._entered):
            for defined in list(self._scopes[0].values()):
                name = defined.node.name if isinstance(defined, Defined) else ""
                if name and name not in names and name not in self._entered:
                    self._enter(defined, [], {})

    # Statements

    def _block(self, statements: Sequence[ast.stmt]) -> _Return:
        for statement in statements:
            done, value = self._statement(statement)
            if done:
                return True, value
        return _GOES_ON

    def _statement(self, node: ast.stmt) -> _Return:
        self._count()
        match node:
            case ast.Import():
                self.script.imports.update(alias.name for alias in node.names)
            case ast.ImportFrom():
                self.script.imports.add(node.module or "")
            case ast.FunctionDef() | ast.AsyncFunctionDef() if is_cell(node):
                self._block(node.body)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self._scopes[-1][node.name] = Defined(node)
                self._decorated(node)
            case ast.ClassDef():
                self._scopes[-1][node.name] = self._class(node)
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
            case ast.Match():
                return self._match(node)
            case ast.For() | ast.AsyncFor():
                self._for(node)
            case ast.While():
                self._once(node.body)
            case ast.Raise() if self._maybe:
                raise _Raised
            case ast.Break() | ast.Continue():
                raise _Jump(isinstance(node, ast.Continue))
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
        return _GOES_ON

    def _if(self, node: ast.If) -> _Return:
        test = self._value(node.test)
        if not isinstance(test, Unknown | Made | Defined | Parsed):
            return self._block(node.body if test else node.orelse)
        return self._either([node.body, node.orelse], node)

    def _match(self, node: ast.Match) -> _Return:
        subject = self._value(node.subject)
        parts = subject if isinstance(subject, list) else [subject]
        if not all(isinstance(part, str | int | None) for part in parts):
            return self._either([case.body for case in node.cases], node)
        for case in node.cases:
            if case.guard is None and self._matches(case.pattern, subject):
                return self._block(case.body)
        return _GOES_ON

    def _matches(self, pattern: ast.pattern, subject: Any) -> bool:
        if isinstance(pattern, ast.MatchOr):
            return any(self._matches(one, subject) for one in pattern.patterns)
        if isinstance(pattern, ast.MatchSequence):
            parts = subject if isinstance(subject, list) else []
            return len(parts) == len(pattern.patterns) and all(
                self._matches(one, part) for one, part in zip(pattern.patterns, parts, strict=True)
            )
        if isinstance(pattern, ast.MatchValue):
            return bool(self._value(pattern.value) == subject)
        return isinstance(pattern, ast.MatchAs) and pattern.pattern is None

    def _either(self, blocks: Sequence[Sequence[ast.stmt]], node: ast.stmt) -> _Return:
        """Follows each of several ways, and keeps what they agree on."""
        place, doubt = self._place(node), self._maybe
        reason = f"it depends on {place}"
        before = [dict(scope) for scope in self._scopes]
        outcomes = []
        self._maybe = doubt or reason
        for block in blocks:
            self._scopes[:] = [dict(scope) for scope in before]
            try:
                self._once(block)
            except _Raised:
                continue
            outcomes.append([dict(scope) for scope in self._scopes])
        self._maybe = doubt
        outcomes = outcomes or [before]
        self._scopes[:] = outcomes[-1]
        for outcome in outcomes[:-1]:
            for scope, other in zip(self._scopes, outcome, strict=True):
                for name, value in other.items():
                    held = scope.get(name, value)
                    if isinstance(value, Made | Defined | Parsed):
                        scope[name] = value
                    elif isinstance(held, Unknown) or held != value:
                        agreed = texts.either(held, value, reason, place)
                        scope[name] = Unknown(name, reason) if agreed is None else agreed
                    else:
                        scope[name] = value
        return _GOES_ON

    def _once(self, block: Sequence[ast.stmt]) -> None:
        with suppress(_Jump):
            self._block(block)

    def _for(self, node: ast.For | ast.AsyncFor) -> None:
        """Each turn of a loop over what is known, else one for all."""
        listed = self._listed(self._value(node.iter))
        if listed is None:
            reason = "it is one of a loop's"
            self._bind(node.target, Unknown(ast.unparse(node.iter)[:100], reason))
            self._once(node.body)
            return
        for value in listed:
            self._bind(node.target, value)
            try:
                self._block(node.body)
            except _Jump as jump:
                if not jump.again:
                    return

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
        elif isinstance(target, ast.Subscript) and dotted(target.value) in ENVIRONMENT:
            self._exported(self._value(target.slice), value, target)
        elif isinstance(target, ast.Subscript):
            held = self._value(target.value)
            key = self._value(target.slice)
            if isinstance(held, dict) and isinstance(key, str):
                held[key] = value

    def _exported(self, name: Any, value: Any, node: ast.expr) -> None:
        """A variable of the environment, as if it were given to a call of ``os.environ``."""
        if not isinstance(name, str):
            return
        if isinstance(value, str) and not self._maybe:  # else nobody knows what a read finds
            self._environment = {**self._environment, name: value}
        made = Made(ENVIRONMENT[0], self._place(node))
        made.given[name] = value, made.place
        self.script.calls.append(made)

    # Classes and functions

    def _class(self, node: ast.ClassDef) -> Defined:
        """A class with what its bases give, of the script's own or of a stack's."""
        fields: dict[str, Any] = {}
        methods: dict[str, Defined] = {}
        for base in node.bases:
            held = self._named(base) if isinstance(base, ast.Name) else None
            if isinstance(held, Defined):
                fields.update(held.fields)
                methods.update(held.methods)
            else:
                fields.update(self._shipped.fields(dotted(base)))
        for statement in node.body:
            match statement:
                case ast.AnnAssign(target=ast.Name(id=name)):
                    fields[name] = self._default(statement.value)
                case ast.Assign(targets=[ast.Name(id=name)]):
                    fields[name] = self._value(statement.value)
                case ast.FunctionDef():
                    methods[statement.name] = Defined(statement)
                case _:
                    pass
        return Defined(node, fields, methods)

    def _default(self, node: ast.expr | None) -> Any:
        """The default of a dataclass's field, as its declaration says."""
        if not isinstance(node, ast.Call) or dotted(node.func).rpartition(".")[2] != "field":
            return None if node is None else self._value(node)
        given = {word.arg: word.value for word in node.keywords}
        if (default := given.get("default")) is not None:
            return self._value(default)
        factory = given.get("default_factory")
        if isinstance(factory, ast.Lambda):
            return self._value(factory.body)
        empty: dict[str, Any] = {"list": [], "dict": {}}
        return empty.get(dotted(factory)) if factory is not None else None

    def _decorated(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        for decorator in node.decorator_list:
            if not isinstance(decorator, ast.Call) or dotted(decorator.func) != "hydra.main":
                continue
            values = {word.arg: self._value(word.value) for word in decorator.keywords}
            folder, name = values.get("config_path"), values.get("config_name")
            if isinstance(name, str):
                self.script.hydra = (folder if isinstance(folder, str) else ".", name)

    def _called(
        self, node: ast.Call, name: str, held: Any, arguments: list[Any], keywords: Keywords
    ) -> Any:
        defined = self._named(node.func) if isinstance(node.func, ast.Name) else None
        if isinstance(held, Made | Parsed) and held.of is not None:
            defined = held.of.methods.get(name.rpartition(".")[2])
            arguments = [held, *arguments]
        if isinstance(defined, Defined) and not isinstance(defined.node, ast.ClassDef):
            return self._enter(defined, arguments, keywords)
        place, _, verb = name.rpartition(".")
        if place in ENVIRONMENT and verb == "setdefault" and len(arguments) == 2:
            if arguments[0] not in self._environment:
                self._exported(arguments[0], arguments[1], node)
            return None
        if name.rpartition(".")[2] in command_line.PARSES:
            parsed = command_line.parsed(name, held, arguments, keywords, self._arguments)
            unknown = Unknown(ast.unparse(node)[:200], "the arguments are known in a run alone")
            return unknown if parsed is None else parsed
        if name.endswith(".cli") and arguments and isinstance(arguments[0], Defined):
            return self._given(arguments[0])
        made = Made(name, self._place(node), of=defined if isinstance(defined, Defined) else None)
        made.given.update({at: (value, made.place) for at, value in enumerate(arguments)})
        made.given.update(keywords)
        if name.endswith(".add_argument") and isinstance(held, Made):
            command_line.add(held, arguments, keywords, self._arguments)
            return None
        if made.of is not None:
            self._begun(made, made.of, arguments, keywords)
        self.script.calls.append(made)
        if len(self.script.commands) < _MOST_COMMANDS:
            self.script.commands.extend(commands.of_call(made, self._shipped, self._maybe))
        return made

    def _begun(
        self, held: Made | Parsed, of: Defined, arguments: Sequence[Any], keywords: Keywords
    ) -> None:
        """What a class does with what is made of it."""
        if "__init__" in of.methods:
            self._enter(of.methods["__init__"], [held, *arguments], keywords)
        if "__post_init__" in of.methods:
            self._enter(of.methods["__post_init__"], [held], {})

    def _given(self, of: Defined) -> Parsed:
        """The arguments that a class of the script's declares."""
        given = {key: value for key, value in self._arguments.items() if key in of.fields}
        found = Parsed({**of.fields, **given}, of=of)
        self._begun(found, of, [], {})
        return found

    def _enter(self, defined: Defined, arguments: Sequence[Any], keywords: Keywords) -> Any:
        node = defined.node
        if isinstance(node, ast.ClassDef):
            return None
        self._entered.add(node.name)
        if self._depth >= _DEEPEST:
            return Unknown(node.name, "it is known in a run alone")
        self._depth += 1
        self._scopes.append(self._parameters(node, arguments, keywords))
        try:
            done, value = self._block(node.body)
        except _Jump:
            return None
        finally:
            self._scopes.pop()
            self._depth -= 1
        return value if done else None

    def _parameters(
        self,
        node: ast.FunctionDef | ast.AsyncFunctionDef,
        arguments: Sequence[Any],
        keywords: Keywords,
    ) -> dict[str, Any]:
        """What a function is called with: arguments, defaults, and what the command line gives to
        parameters of a class of the script's."""
        scope: dict[str, Any] = {}
        listed = [*node.args.posonlyargs, *node.args.args]
        names = [one.arg for one in listed]
        defaults = node.args.defaults
        for name, default in zip(names[len(names) - len(defaults) :], defaults, strict=True):
            scope[name] = self._value(default)
        for one, value in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True):
            if value is not None:
                scope[one.arg] = self._value(value)
        scope.update(zip(names, arguments, strict=False))
        if node.args.vararg is not None:
            scope[node.args.vararg.arg] = list(arguments[len(names) :])
        scope.update({name: value for name, (value, _) in keywords.items()})
        for parameter in (*listed, *node.args.kwonlyargs):
            name = parameter.arg
            if not arguments and not keywords and name in self._arguments:
                scope[name] = self._arguments[name]
            if name in scope:
                continue
            of = parameter.annotation
            held = self._named(of) if isinstance(of, ast.Name) else None
            if isinstance(held, Defined) and isinstance(held.node, ast.ClassDef):
                scope[name] = self._given(held)
            else:
                scope[name] = Unknown(name, f"{name} is what {node.name} is called with")
        return scope
