"""What the author's source says: where things are, and which calls give another result next time."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any

from agentrl.env.check.child.author import Author, author_bases, source_file
from agentrl.env.check.records import Place, Suspect
from agentrl.env.tool import MARK, ToolOptions

_FIXED_RANDOM = {"Random", "Generator", "RandomState", "SeedSequence", "PCG64", "default_rng", "SystemRandom"}
_CLOCKS = {
    "time.time", "time.time_ns", "time.monotonic", "time.monotonic_ns", "time.perf_counter", "time.perf_counter_ns",
    "datetime.datetime.now", "datetime.datetime.utcnow", "datetime.datetime.today", "datetime.date.today",
}  # fmt: skip
_UNIQUE = {"uuid.uuid1", "uuid.uuid4", "os.urandom", "os.getpid", "random.SystemRandom", "id"}
_FOLDERS = {"os.listdir", "os.scandir", "glob.glob", "glob.iglob"}
_ORDERED = {"list", "tuple", "enumerate", "iter", "zip", "map"}


def places_of(cls: type, author: Author, made_by: Callable[..., Any] | None = None) -> dict[str, Place]:
    """Keys: "class", a method's name, "tool NAME", "tool NAME.PARAMETER"."""
    found: dict[str, Place] = {}
    code = getattr(made_by, "__code__", None)
    if code is not None:
        found["class"] = found["run"] = Place(code.co_filename, code.co_firstlineno, code.co_qualname)
    for base in reversed(list(author_bases(cls, author))):
        file = source_file(base)
        node = _class_node(file, base.__name__) if file is not None else None
        if file is None or node is None:
            continue
        found["class"] = Place(file, node.lineno, base.__name__)
        for function in node.body:
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                _add_function(found, file, base, function)
    return found


def suspects_of(author: Author) -> list[Suspect]:
    found: list[Suspect] = []
    for module in author.modules():
        tree = _tree(module.__file__)
        if tree is not None and module.__file__ is not None:
            visitor = _Suspects(module.__file__)
            visitor.visit(tree)
            found += visitor.found
    return found


def assignment(cls_or_module: type | ModuleType, name: str) -> Place | None:
    """Where a class attribute or a global gets its first value."""
    is_module = isinstance(cls_or_module, ModuleType)
    file = cls_or_module.__file__ if isinstance(cls_or_module, ModuleType) else source_file(cls_or_module)
    root: Any = _tree(file) if is_module else _class_node(file, cls_or_module.__name__)
    for node in getattr(root, "body", []):
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if any(isinstance(target, ast.Name) and target.id == name for target in targets):
            return Place(str(file), node.lineno, cls_or_module.__name__)
    return None


def _add_function(found: dict[str, Place], file: str, base: type, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
    found[node.name] = place = Place(file, node.lineno, f"{base.__name__}.{node.name}")
    options = getattr(inspect.getattr_static(base, node.name, None), MARK, None)
    if isinstance(options, ToolOptions):
        tool = f"tool {options.name or node.name}"
        found[tool] = place
        for argument in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs):
            found[f"{tool}.{argument.arg}"] = Place(file, argument.lineno, place.name)


def _tree(file: str | None) -> ast.Module | None:
    if file is None:
        return None
    try:
        with open(file, "rb") as source:
            return ast.parse(source.read())
    except (OSError, SyntaxError, ValueError):
        return None


def _class_node(file: str | None, name: str) -> ast.ClassDef | None:
    tree = _tree(file)
    if tree is None:
        return None
    return next((node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name == name), None)


class _Suspects(ast.NodeVisitor):
    def __init__(self, file: str) -> None:
        self.found: list[Suspect] = []
        self._file = file
        self._names: dict[str, str] = {}  # as imported -> in full
        self._inside: list[str] = []

    def visit_Import(self, node: ast.Import) -> None:
        for name in node.names:
            self._names[name.asname or name.name.partition(".")[0]] = (
                name.name if name.asname else name.name.partition(".")[0]
            )

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        for name in node.names:
            self._names[name.asname or name.name] = f"{node.module}.{name.name}"

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> None:
        self._inside.append(node.name)
        self.generic_visit(node)
        self._inside.pop()

    visit_AsyncFunctionDef = visit_FunctionDef
    visit_ClassDef = visit_FunctionDef

    def visit_For(self, node: ast.For) -> None:
        if _is_set(node.iter):
            self._add("set order", node, ast.unparse(node.iter))
        self.generic_visit(node)

    def visit_comprehension(self, node: ast.comprehension) -> None:
        if _is_set(node.iter):
            self._add("set order", node.iter, ast.unparse(node.iter))
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        name = self._in_full(node.func)
        if name is not None:
            kind = self._kind(name, node)
            if kind is not None:
                self._add(kind, node, ast.unparse(node))
        elif isinstance(node.func, ast.Attribute):
            if node.func.attr in ("iterdir", "rglob", "glob"):
                self._add("directory order", node, ast.unparse(node))
            elif node.func.attr == "join" and any(_is_set(argument) for argument in node.args):
                self._add("set order", node, ast.unparse(node))
        self.generic_visit(node)

    def _kind(self, name: str, node: ast.Call) -> Any:
        head, _, tail = name.rpartition(".")
        if name in _CLOCKS:
            return "clock"
        if name in _UNIQUE or head == "secrets":
            return "unique"
        if name == "hash":
            return "hash"
        if name in _FOLDERS:
            return "directory order"
        if head in ("random", "numpy.random"):
            if tail not in _FIXED_RANDOM:
                return "random"
            return None if node.args or node.keywords else "unseeded"
        if name in _ORDERED and any(_is_set(argument) for argument in node.args):
            return "set order"
        return None

    def _in_full(self, node: ast.expr) -> str | None:
        if isinstance(node, ast.Name):
            return self._names.get(node.id, node.id)
        if isinstance(node, ast.Attribute):
            head = self._in_full(node.value)
            known = isinstance(node.value, ast.Attribute) or (
                isinstance(node.value, ast.Name) and node.value.id in self._names
            )
            return f"{head}.{node.attr}" if head is not None and known else None
        return None

    def _add(self, kind: Any, node: ast.expr | ast.stmt, text: str) -> None:
        place = Place(self._file, node.lineno, ".".join(self._inside))
        self.found.append(Suspect(kind, text[:100], place))


def _is_set(node: ast.expr) -> bool:
    if isinstance(node, ast.Set | ast.SetComp):
        return True
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("set", "frozenset")
