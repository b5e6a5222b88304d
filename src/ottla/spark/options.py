"""Options of `.option(…)`: one table per reader or writer, with the names of Spark's Kafka connector.

Spark passes options as strings and does not keep the case of their names. `read_options` converts them by a
table. An unknown option is rejected with the nearest known name before any data is read or written. Options
that start with `kafka.` are client settings; see `clients.py`.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

KAFKA: Final = "kafka."
#: Spark's own options, which it passes to every source and sink.
_SPARKS: Final = frozenset(("path", "checkpointlocation", "queryname"))


class OptionError(ValueError):
    """An option is unknown, missing or invalid."""


@dataclass(frozen=True, slots=True)
class Option:
    """One option: its parser, its default and its description for the docs."""

    name: str
    read: Callable[[str], Any]
    default: Any
    meaning: str


def text(value: str) -> str:
    if not value.strip():
        raise OptionError("must not be empty")
    return value.strip()


def boolean(value: str) -> bool:
    if value.strip().lower() not in ("true", "false"):
        raise OptionError(f"must be true or false, not {value!r}")
    return value.strip().lower() == "true"


def whole_number(least: int) -> Callable[[str], int]:
    def read(value: str) -> int:
        try:
            number = int(value)
        except ValueError:
            raise OptionError(f"must be a whole number, not {value!r}") from None
        if number < least:
            raise OptionError(f"must be {least} or more, not {number}")
        return number

    return read


def one_of(*known: str) -> Callable[[str], str]:
    def read(value: str) -> str:
        found = next((name for name in known if name.lower() == value.strip().lower()), None)
        if found is None:
            raise OptionError(f"must be one of {', '.join(known)}, not {value!r}")
        return found

    return read


def read_options(
    given: Mapping[str, str], table: Iterable[Option], what: str
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the value of every option in the table, and the `kafka.*` settings without that prefix."""
    known = {option.name.lower(): option for option in table}
    values = {option.name: option.default for option in known.values()}
    kafka: dict[str, str] = {}
    for name, value in given.items():
        lower = name.lower()
        if lower.startswith(KAFKA):
            kafka[lower.removeprefix(KAFKA)] = value
        elif (option := known.get(lower)) is not None:
            try:
                values[option.name] = option.read(value)
            except OptionError as error:
                raise OptionError(f"option {option.name} {error}") from None
        elif lower not in _SPARKS:
            raise OptionError(f"{what} has no option {name!r}: {_hint(lower, known)}")
    if not kafka.get("bootstrap.servers", "").strip():
        raise OptionError(
            f"{what} needs the option kafka.bootstrap.servers: write HOST:PORT, as in 127.0.0.1:9092"
        )
    return values, kafka


def _hint(name: str, known: Mapping[str, Option]) -> str:
    near = difflib.get_close_matches(name, [*known, "kafka.bootstrap.servers"], 1)
    if near:
        return f"did you mean {known[near[0]].name if near[0] in known else near[0]}?"
    if "." in name:
        return f"write client settings with the prefix {KAFKA}, as in {KAFKA}{name}"
    return f"known are {', '.join(option.name for option in known.values())}"
