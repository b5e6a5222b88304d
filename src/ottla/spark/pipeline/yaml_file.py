"""Reads a YAML pipeline: its content with line numbers, and ${NAME} or ${NAME:-default} replaced by settings.

Pure.

Variables are replaced in values after YAML is parsed, so a variable always stays one value.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import yaml

from ottla.spark.pipeline.model import PipelineError, Problem
from ottla.spark.pipeline.parser import FileContent, Place

#: No field is a date; text that looks like one stays text.
_DATE: Final = "tag:yaml.org,2002:timestamp"
#: Any other ${ is an error, and matches without a name.
_VARIABLE: Final = re.compile(r"\$(\$)?\{(?:([A-Za-z_]\w*)(?:(:-)([^}]*))?\})?")


def read_yaml(file: str, text: str, variables: Mapping[str, str]) -> FileContent:
    """Parse the text. Raises `PipelineError` if it is not YAML with names and values."""
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        said = str(getattr(error, "problem", None) or "it cannot be read")
        raise PipelineError(
            [Problem(file, mark.line + 1 if mark else None, "", f"no YAML: {said}")]
        ) from None
    if not isinstance(node, yaml.MappingNode):
        raise PipelineError(
            [
                Problem(
                    file, 1, "", "must be names and values: name, brokers, checkpoint, sources, steps, sinks"
                )
            ]
        )
    reading = _Content(file, variables)
    content = reading.value(node, ())
    return FileContent(file, content, reading.lines, tuple(reading.problems))


class _Content:
    def __init__(self, file: str, variables: Mapping[str, str]) -> None:
        self._file = file
        self._variables = variables
        self._scalars = yaml.SafeLoader("")
        self._open: list[yaml.Node] = []
        self.lines: dict[Place, int] = {}
        self.problems: list[Problem] = []

    def value(self, node: yaml.Node, place: Place) -> Any:
        self.lines.setdefault(place, node.start_mark.line + 1)
        if any(node is each for each in self._open):
            self._problem(node, place, "contains itself through an alias: remove the alias")
            return None
        self._open.append(node)
        try:
            return self._value(node, place)
        except (yaml.YAMLError, ValueError) as error:
            self._problem(node, place, f"cannot be read: {getattr(error, 'problem', None) or error}")
            return None
        finally:
            self._open.pop()

    def _value(self, node: yaml.Node, place: Place) -> Any:
        if not node.tag.startswith("tag:yaml.org,2002:"):
            self._problem(node, place, f"has the unsupported tag {node.tag}: remove it")
            return None
        if isinstance(node, yaml.MappingNode):
            found: dict[str, Any] = {}
            for key_node, value_node in node.value:
                if not isinstance(key_node, yaml.ScalarNode):
                    self._problem(key_node, place, "has a name that is not a string: quote it")
                    continue
                name = str(key_node.value)
                line = key_node.start_mark.line + 1
                if name in found:
                    self._problem(key_node, (*place, name), "is defined twice: rename one")
                self.lines[*place, name] = line
                found[name] = self.value(value_node, (*place, name))
            return found
        if isinstance(node, yaml.SequenceNode):
            return [self.value(each, place) for each in node.value]
        if "${" in node.value:
            return self._replaced(node.value, node.start_mark.line + 1, place)
        return node.value if node.tag == _DATE else self._scalars.construct_object(node)

    def _problem(self, node: yaml.Node, place: Place, message: str) -> None:
        self.problems.append(Problem(self._file, node.start_mark.line + 1, ".".join(place), message))

    def _replaced(self, text: str, line: int, place: Place) -> str:
        def replace(match: re.Match[str]) -> str:
            escaped, name, has_default, default = match.groups()
            if escaped:
                return match[0][1:]
            if name is None:
                said = (
                    "${ must be followed by NAME} or NAME:-default}, with letters, digits and _ in NAME; "
                    "write $${ for a plain ${"
                )
                self.problems.append(Problem(self._file, line, ".".join(place), said))
                return match[0]
            if name in self._variables:
                return self._variables[name]
            if has_default:
                return default
            self.problems.append(
                Problem(
                    self._file,
                    line,
                    ".".join(place),
                    f"{name} is not set: set it in the environment or with --set {name}=…, "
                    f"or give a default, ${{{name}:-…}}",
                )
            )
            return match[0]

        return _VARIABLE.sub(replace, text)
