"""docs/operating.md quotes what the broker says; each quotation is held by a test of this folder, and by one only once."""

import ast
from pathlib import Path

from tests.faults.broken import quotes


def test_every_message_that_is_quoted_is_held_by_a_test() -> None:
    held: set[str] = set()
    for path in Path(__file__).parent.glob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "told":
                assert isinstance(node.args[1], ast.Constant)
                held.add(node.args[1].value)
    assert quotes()
    for words in held:
        assert len([quote for quote in quotes() if words in quote]) == 1, words
    assert [quote for quote in quotes() if not any(words in quote for words in held)] == []
