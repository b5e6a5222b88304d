"""Replication uses of the broker what `ReplicationHost` names, and nothing else."""

import ast
from pathlib import Path

import pytest

import ottla.replication

MODULES = sorted(Path(ottla.replication.__path__[0]).glob("*.py"))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.name)
def test_no_module_imports_the_broker_not_even_for_types(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    imported = [
        name
        for node in ast.walk(tree)
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    ]
    assert [name for name in imported if name.startswith("ottla.broker")] == []
