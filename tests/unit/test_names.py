"""A reader meets each name with one meaning (docs/adr/0035-names-have-one-meaning.md)."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

INCLUDE = Path(__file__).resolve().parents[2] / "include"


@cache
def modules() -> Mapping[str, ast.Module]:
    """By name; every process of the suite imports this file, and only one asks."""
    return {
        ".".join(path.relative_to(INCLUDE).with_suffix("").parts): ast.parse(
            path.read_text("utf-8")
        )
        for path in sorted((INCLUDE / "backstop").rglob("*.py"))
    }


def classes() -> Iterator[tuple[str, str]]:
    """(module, class) of each class at the top of a module."""
    for module, tree in modules().items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                yield module, node.name


def test_no_module_meets_two_classes_of_one_name() -> None:
    where = defaultdict(set)
    for module, name in classes():
        where[name].add(module)
    shared = {name for name, modules in where.items() if len(modules) > 1}
    for module, tree in modules().items():
        met = {name: {module} for name in shared if module in where[name]}
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module is not None:
                for alias in node.names:
                    # What a package hands on is the class of the module below it.
                    if node.module in where[alias.name]:
                        met.setdefault(alias.name, set()).add(node.module)
        assert {name: met[name] for name in met if len(met[name]) > 1} == {}, module


def test_no_module_is_named_after_what_anything_could_be() -> None:
    vague = {"common", "helpers", "misc", "util", "utils", "work"}
    assert [module for module in modules() if module.rpartition(".")[2] in vague] == []
