"""YAML text → a tree of values in which every key knows its line, with `${NAME}` and `${NAME:-default}` in texts
replaced from a given environment. Knows nothing of what the keys mean.

Scalars follow YAML 1.2, not PyYAML's 1.1: `2e-4` is a number, `yes` and `on` are text (a field that takes true or
false still understands them), and dates are text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import yaml

from rankzero.errors import ConfigError, Problem
from rankzero.redaction import looks_secret

KeyPath: TypeAlias = tuple[str | int, ...]
Tree: TypeAlias = "Scalar | list[Tree] | dict[str, Tree]"

_MOST_VALUES = 10_000  # aliases can multiply a small file into a huge one
_STANDARD_TAGS = {f"tag:yaml.org,2002:{kind}" for kind in ("str", "seq", "map")}
_INT = re.compile(r"[-+]?[0-9]{1,40}")
_OCTAL = re.compile(r"[-+]?0[0-7]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_WORDS: dict[str, bool | float | None] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **{f"{sign}{word}": float("inf") for sign in ("", "+") for word in (".inf", ".Inf", ".INF")},
    **dict.fromkeys(("-.inf", "-.Inf", "-.INF"), float("-inf")),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), float("nan")),
}


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Composes nodes only; without resolvers every plain scalar stays text, which `plain_value` then types."""

    yaml_implicit_resolvers: dict[str, object] = {}


@dataclass(frozen=True, slots=True)
class Scalar:
    """One value: as it was written, and as what YAML takes it for."""

    text: str
    value: bool | int | float | str | None

    @property
    def is_empty(self) -> bool:
        """Nothing was written, as in `lora:`; `null` and `""` are something."""
        return self.value is None and not self.text


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a value was written: a file and its line, or a source without lines (line 0).

    A section that nobody wrote, made to hold a value from the command line, is `implied`.
    """

    source: str
    line: int = 0
    implied: bool = False

    def __str__(self) -> str:
        return f"{self.source}:{self.line}" if self.line else self.source

    def at(self, path: KeyPath) -> str:
        """`run.yaml:14 data.max_length`."""
        return f"{self} {dotted(path)}".strip()


@dataclass(slots=True)
class Document:
    """A tree, the origin of each key in it, and what was wrong.

    `base` is the path of the tree's root. Paths in `broken` have no meaningful value.
    """

    tree: Tree
    base: KeyPath = ()
    origins: dict[KeyPath, Origin] = field(default_factory=dict)
    problems: list[tuple[KeyPath, Problem]] = field(default_factory=list)
    broken: set[KeyPath] = field(default_factory=set)

    def expand(self, env: Mapping[str, str]) -> None:
        """Replace the references in its texts, which are texts afterwards too."""
        self.tree = self._expanded(self.tree, self.base, self.origins[self.base], env)

    def _expanded(self, tree: Tree, path: KeyPath, origin: Origin, env: Mapping[str, str]) -> Tree:
        if isinstance(tree, dict):
            return {key: self._expanded(item, (*path, key), origin, env) for key, item in tree.items()}
        if isinstance(tree, list):
            return [self._expanded(item, (*path, index), origin, env) for index, item in enumerate(tree)]
        if not isinstance(tree.value, str):
            return tree
        text, problems = expand(tree.text, env)
        if problems:
            self.problems += [(path, Problem(one.what, origin.at(path), one.hint)) for one in problems]
            self.broken.add(path)
            return Scalar("", None)
        return Scalar(text, text)


def dotted(path: KeyPath) -> str:
    """`data.train[0].path`."""
    return "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in path).removeprefix(".")


def plain_value(text: str) -> bool | int | float | str | None:
    """What YAML 1.2 takes an unquoted scalar for."""
    if text in _WORDS:
        return _WORDS[text]
    if _INT.fullmatch(text):
        return int(text)
    return float(text) if _FLOAT.fullmatch(text) else text


def with_octal(scalar: Scalar) -> bool | int | float | str | None:
    """A scalar's value where an integer that begins with 0 is octal, as kubectl reads it: a mode that somebody takes
    from a manifest (`defaultMode: 0400`) is to mean here what it means there. Of YAML 1.1, by which kubectl reads, that
    is all: `0x1F`, `1_000`, `yes` are text as everywhere here."""
    is_octal = isinstance(scalar.value, int) and _OCTAL.fullmatch(scalar.text)
    return int(scalar.text, 8) if is_octal else scalar.value


def as_tree(value: object) -> Tree:
    """A Python value as if it had been written, for values that do not come from YAML."""
    if isinstance(value, dict):
        return {str(key): as_tree(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [as_tree(item) for item in value]
    if value is None or isinstance(value, bool):
        return Scalar({None: "null", True: "true", False: "false"}[value], value)
    return Scalar(str(value), value if isinstance(value, int | float) else str(value))


def parse(
    text: str, *, source: str, env: Mapping[str, str], base: KeyPath = (), with_lines: bool = True
) -> Document | None:
    """Read one YAML document; None where it holds nothing. `base` is the path of its root.

    Raises ConfigError where the text is not YAML at all; everything else is in `problems`.
    """
    try:
        node = yaml.compose(text, Loader=_Loader)
    except yaml.YAMLError as error:
        raise ConfigError(_syntax_problem(error, text, source)) from error
    if node is None:
        return None
    reader = _Reader(env, lambda line: Origin(source, line + 1 if with_lines else 0))
    reader.document.base = base
    reader.document.origins[base] = reader.origin(node.start_mark.line) if base else Origin(source)
    reader.document.tree = reader.read(node, base)
    return reader.document


@dataclass(slots=True)
class _Reader:
    """Turns nodes into a Document."""

    env: Mapping[str, str]
    origin: Callable[[int], Origin]
    document: Document = field(default_factory=lambda: Document({}))
    open_nodes: set[int] = field(default_factory=set)
    values: int = 0

    def read(self, node: yaml.Node, path: KeyPath) -> Tree:
        self.values += 1
        if self.values > _MOST_VALUES:
            where = self.origin(node.start_mark.line).at(path)
            raise ConfigError(f"more than {_MOST_VALUES} values", where=where, hint="is this the right file?")
        if node.tag not in _STANDARD_TAGS:
            tag = node.tag.replace("tag:yaml.org,2002:", "!!")
            return self._refuse(path, f"the YAML tag {tag} is not supported", "leave the tag out")
        if id(node) in self.open_nodes:
            return self._refuse(path, "this YAML alias contains itself", "write the value out")
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, path)
        self.open_nodes.add(id(node))
        tree: Tree = self._mapping(node, path) if isinstance(node, yaml.MappingNode) else self._sequence(node, path)
        self.open_nodes.discard(id(node))
        return tree

    def _scalar(self, node: yaml.ScalarNode, path: KeyPath) -> Scalar:
        text, problems = expand(node.value, self.env)
        for problem in problems:
            self._refuse(path, problem.what, problem.hint)
        return Scalar(text, text if node.style else plain_value(text))

    def _sequence(self, node: yaml.Node, path: KeyPath) -> list[Tree]:
        items: list[Tree] = []
        for index, item in enumerate(node.value):
            self.document.origins[*path, index] = self.origin(item.start_mark.line)
            items.append(self.read(item, (*path, index)))
        return items

    def _mapping(self, node: yaml.MappingNode, path: KeyPath) -> dict[str, Tree]:
        items: dict[str, Tree] = {}
        for key_node, value_node in node.value:
            origin = self.origin(key_node.start_mark.line)
            if not isinstance(key_node, yaml.ScalarNode):
                self._add(path, Problem("a key must be text", origin.at(path)))
                continue
            here = (*path, key_node.value)
            if key_node.value == "<<" and not key_node.style:
                self._add(path, Problem("merge keys (<<) are not supported", origin.at(path), "repeat the keys"))
            elif key_node.value in items:
                first = self.document.origins[here]
                hint = f"it is also at {first}" if first.line != origin.line else ""
                self._add(here, Problem("given twice", origin.at(here), hint))
            else:
                self.document.origins[here] = origin
                items[key_node.value] = self.read(value_node, here)
        return items

    def _refuse(self, path: KeyPath, what: str, hint: str) -> Scalar:
        self._add(path, Problem(what, self.document.origins[path].at(path), hint))
        self.document.broken.add(path)
        return Scalar("", None)

    def _add(self, path: KeyPath, problem: Problem) -> None:
        self.document.problems.append((path, problem))


def _syntax_problem(error: yaml.YAMLError, text: str, source: str) -> Problem:
    if isinstance(error, yaml.reader.ReaderError):
        number = text.count("\n", 0, error.position) + 1
        return Problem(f"not YAML: {error.reason}", f"{source}:{number}")
    mark = getattr(error, "problem_mark", None)
    if mark is None:
        return Problem(f"not YAML: {error}", source)
    if "another document" in str(error):
        return Problem("a second YAML document starts here", f"{source}:{mark.line + 1}", "remove the line ---")
    what = f"not YAML: {getattr(error, 'problem', None) or error}"
    start = getattr(error, "context_mark", None)
    if start is not None and start.line != mark.line:
        what += f" ({getattr(error, 'context', '')} that starts on line {start.line + 1})"
    lines = text.splitlines()
    line = lines[mark.line] if mark.line < len(lines) else ""
    return Problem(what, f"{source}:{mark.line + 1}:{mark.column + 1}", _syntax_hint(line, mark.column, what))


def _syntax_hint(line: str, column: int, what: str) -> str:
    """The usual slips, told from the line that the parser stopped at."""
    if "\t" in line[: column + 1]:
        return "YAML is indented with spaces, not tabs"
    if re.search(r"[{\[,].*\$\{", line):
        return 'inside { } and [ ] a variable needs quotes: "${NAME}" is text; on a line of its own it needs none'
    if "mapping values are not allowed" in what:
        return "check the indentation, and put quotes around a value that contains ': '"
    if line[column : column + 1] in ("@", "`", "%", "*", "&"):
        return f"put quotes around a value that begins with {line[column]}"
    return ""


_REFERENCE = re.compile(r"\$\$\{|\$\{(?P<body>[^{}]*)\}|\$\{")
_BODY = re.compile(r"(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?P<default>:-.*)?", re.DOTALL)


def expand(text: str, env: Mapping[str, str]) -> tuple[str, list[Problem]]:
    """`text` with its references replaced, and what is wrong with them (without a place).

    As in a shell, a default also stands in for a variable that is set but empty. `$${` is a literal `${`.
    """
    problems: list[Problem] = []

    def value(match: re.Match[str]) -> str:
        if match.group() == "$${":
            return "${"
        body = _BODY.fullmatch(match.group("body") or "")
        if body is None:
            hint = "write ${NAME} or ${NAME:-default}, or $${ for the two characters themselves"
            problems.append(Problem("cannot read what follows ${", hint=hint))
            return ""
        name, default = body.group("name"), body.group("default")
        if looks_secret(name):
            hint = f"leave it out: a process finds {name} in its environment; pods get it by cluster.yaml's secrets"
            problems.append(Problem(f"{name} holds a secret, and a spec is written to disk and shown", hint=hint))
            return ""
        if default is not None:
            return env.get(name) or default.removeprefix(":-")
        if name not in env:
            hint = f"set it, or give it a default: ${{{name}:-value}}"
            problems.append(Problem(f"the environment variable {name} is not set", hint=hint))
        return env.get(name, "")

    return _REFERENCE.sub(value, text), problems


def escape(text: str) -> str:
    """`text` such that `expand` gives it back unchanged."""
    return text.replace("${", "$${")
