"""One-operator mutants of a source file."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass

SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.USub: ast.UAdd,
}
"""Every operator with the one that takes its place."""


@dataclass(frozen=True)
class Mutant:
    """A file with one operator or constant changed."""

    line: int
    before: str
    after: str
    source: str
    """The whole file, as `ast.unparse` writes it."""


def mutants(source: str) -> Iterator[Mutant]:
    """All mutants of a file, in the order of its nodes; annotations and docstrings stay as they are."""
    count = len(list(_places(ast.parse(source))))
    for index in range(count):
        tree = ast.parse(source)
        node, field, position, new = list(_places(tree))[index]
        before = ast.unparse(node)
        if position is None:
            setattr(node, field, new)
        else:
            getattr(node, field)[position] = new
        after = ast.unparse(node)
        yield Mutant(node.lineno, before, after, ast.unparse(ast.fix_missing_locations(tree)))


def _places(tree: ast.AST) -> Iterator[tuple[ast.expr, str, int | None, object]]:
    """Sites that can be changed: an expression, its field, the place in that field, and what stands there then."""
    skipped = {id(part) for node in ast.walk(tree) for part in _untouched(node)}
    for node in ast.walk(tree):
        if id(node) in skipped or not isinstance(node, ast.expr):
            continue
        if isinstance(node, ast.Compare):
            for position, operator in enumerate(node.ops):
                yield node, "ops", position, SWAPS[type(operator)]()
        elif isinstance(node, ast.BinOp | ast.BoolOp | ast.UnaryOp) and type(node.op) in SWAPS:
            yield node, "op", None, SWAPS[type(node.op)]()
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.Invert):
            twice = ast.UnaryOp(op=copy.copy(node.op), operand=node.operand)
            yield node, "operand", None, twice
        elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
            yield node, "value", None, not node.value
        elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
            yield node, "value", None, node.value + 1
        elif isinstance(node, ast.IfExp):
            yield node, "test", None, ast.UnaryOp(op=ast.Not(), operand=node.test)


def _untouched(node: ast.AST) -> Iterator[ast.AST]:
    parts: list[ast.AST | None] = []
    if isinstance(node, ast.AnnAssign):
        parts.append(node.annotation)
    if isinstance(node, ast.arg):
        parts.append(node.annotation)
    if isinstance(node, ast.FunctionDef):
        parts.append(node.returns)
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        parts.append(node.value)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id.endswith("Error"):
        parts.append(node)
    for part in parts:
        if part is not None:
            yield from ast.walk(part)
