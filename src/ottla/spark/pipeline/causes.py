"""Why a query failed, in a few lines: what is behind Spark's and Java's traces; and whether the file is to blame for a start that failed. Pure."""

from __future__ import annotations

import re
from typing import Final

LINES_MAX: Final = 6
_TRACEBACK: Final = "Traceback (most recent call last):"
#: Where what was said ends, and what only Spark's own makers want to read begins.
_ENDS: Final = re.compile(
    r"^(=== Streaming Query ===|JVM stacktrace:?|\s+at [\w.$/]+\(|Driver stacktrace:|Caused by: |\tSuppressed: |'\w+ |\+- )",
    re.MULTILINE,
)
#: Spark's name of an error and its number in the SQL standard: what is between them says it.
_NUMBER: Final = re.compile(r"\.?\s*SQLSTATE: \w+;?")
_CLASS: Final = re.compile(r"^\[[A-Z0-9_.]+\] ")
_FRAME: Final = re.compile(r'^\s+File "([^"]+)", line (\d+)')
_EXCEPTION: Final = re.compile(r"^(?P<type>[A-Za-z_][\w.]*): ?(?P<message>.*)$")
#: Errors that were made to be read: their type says nothing more.
_PLAIN: Final = ("ottla.", "ValueError", "builtins.ValueError")
_NOT_THE_USERS: Final = ("/pyspark/", "/py4j/", "/site-packages/", "/lib/python", "<frozen", "/ottla/spark/")


#: What Python raises for what is wrong with the code itself.
_FAULTS: Final = (
    ValueError, TypeError, LookupError, AttributeError, NameError, ImportError, AssertionError, ArithmeticError, SyntaxError,
)  # fmt: skip
#: Spark's words for a text or an option that it does not understand, of which PySpark has classes for each way to reach Spark; our tables' own;
#: and a schema that a registry, which has answered, does not have.
_FAULT_NAMES: Final = frozenset(
    ("AnalysisException", "IllegalArgumentException", "SinkError", "UnknownSchema")
)
#: What a source in Python could not do; Spark calls it a fault of the query's.
_CLIENTS: Final = "ottla.client.errors."


def is_the_files(error: BaseException) -> bool:
    """Whether it is wrong in the file, and will be next time; else something was not there: a broker, a schema registry, a cluster."""
    if any(kind.__name__ in _FAULT_NAMES for kind in type(error).__mro__):
        return _CLIENTS not in str(error)
    return isinstance(error, _FAULTS)


def cause_of(text: str) -> str:
    """The cause, in at most a few lines."""
    text = _NUMBER.sub("", text)
    if _TRACEBACK in text:
        lines = _python_cause(text.rpartition(_TRACEBACK)[2])
    else:
        end = _ENDS.search(text)
        lines = [
            _CLASS.sub("", line.rstrip())
            for line in text[: end.start() if end else None].splitlines()
            if line.strip()
        ]
    lines = lines or [text.strip().splitlines()[0] if text.strip() else "no reason was given"]
    if len(lines) > LINES_MAX:
        lines = [*lines[:LINES_MAX], "…"]
    return "\n".join(lines)


def _python_cause(trace: str) -> list[str]:
    """The last exception of a traceback, and the last line of the user's own code on the way to it."""
    place = None
    found: list[str] = []
    for line in trace.splitlines():
        frame = _FRAME.match(line)
        if frame:
            # Another traceback's frames come behind a message, where one error caused the next.
            found = []
            if not any(part in frame[1] for part in _NOT_THE_USERS):
                place = f"{frame[1]}, line {frame[2]}"
        elif found:
            if not line.strip() or _ENDS.match(line):
                break
            found.append(line.rstrip())
        elif line and not line.startswith((" ", "\t")):
            found = [_said(line)]
    return [*found, *([f"in {place}"] if place and found else [])]


def _said(line: str) -> str:
    match = _EXCEPTION.match(line)
    if match is None:
        return line.rstrip()
    if match["type"].startswith(_PLAIN) and match["message"]:
        return match["message"]
    return f"{match['type'].rpartition('.')[2]}: {match['message']}"
