"""The coordinators know the broker only as the Protocols of `broker/coordinators/host.py`."""

import ast
from pathlib import Path

import pytest

import ottla.broker.coordinators as package

FORBIDDEN = ("ottla.broker.core", "ottla.broker.api")
MODULES = sorted(Path(package.__file__).parent.glob("*.py"))


def imported(path: Path) -> set[str]:
    """The modules that a file imports, also those for the type checker alone."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            names |= {node.module, *(f"{node.module}.{each.name}" for each in node.names)}
        elif isinstance(node, ast.Import):
            names |= {each.name for each in node.names}
    return names


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_no_module_imports_the_whole_broker(path: Path) -> None:
    wrong = {
        name for name in imported(path) if f"{name}.".startswith(tuple(f"{each}." for each in FORBIDDEN))
    }
    assert not wrong
