"""Error causes: the message behind stack traces, and whether the pipeline file is at fault. Pure."""

from __future__ import annotations

import re
from typing import Final

LINES_MAX: Final = 6
_TRACEBACK: Final = "Traceback (most recent call last):"
#: The end of the message, and the start of Spark's internals.
_ENDS: Final = re.compile(
    r"^(=== Streaming Query ===|JVM stacktrace:?|\s+at [\w.$/]+\(|Driver stacktrace:|Caused by: |\tSuppressed: |'\w+ |\+- )",
    re.MULTILINE,
)
#: Spark's error class and SQLSTATE around the message.
_NUMBER: Final = re.compile(r"\.?\s*SQLSTATE: \w+;?")
_CLASS: Final = re.compile(r"^\[[A-Z0-9_.]+\] ")
_FRAME: Final = re.compile(r'^\s+File "([^"]+)", line (\d+)')
_EXCEPTION: Final = re.compile(r"^(?P<type>[A-Za-z_][\w.]*): ?(?P<message>.*)$")
#: Errors with messages for users: their type adds nothing.
_PLAIN: Final = ("ottla.", "ValueError", "builtins.ValueError")
_NOT_THE_USERS: Final = ("/pyspark/", "/py4j/", "/site-packages/", "/lib/python", "<frozen", "/ottla/spark/")


#: Python exceptions for faulty code.
_FAULTS: Final = (
    ValueError, TypeError, LookupError, AttributeError, NameError, ImportError, AssertionError, ArithmeticError, SyntaxError,
)  # fmt: skip
#: Spark's exceptions for invalid SQL or options (PySpark has a class for each connection type), our table
#: sinks' errors, and an unknown schema, which the registry has reported.
_FAULT_NAMES: Final = frozenset(
    ("AnalysisException", "IllegalArgumentException", "SinkError", "UnknownSchema")
)
#: Client errors in a Python source, which Spark reports as faults of the query.
_CLIENTS: Final = "ottla.client.errors."


def is_file_fault(error: BaseException) -> bool:
    """Whether the file is at fault. Otherwise a broker, a schema registry or a cluster was unavailable."""
    if any(kind.__name__ in _FAULT_NAMES for kind in type(error).__mro__):
        return _CLIENTS not in str(error)
    return isinstance(error, _FAULTS)


def cause_of(text: str) -> str:
    """The cause, in a few lines."""
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
    """The last exception of a traceback, and the last line of user code before it."""
    place = None
    found: list[str] = []
    for line in trace.splitlines():
        frame = _FRAME.match(line)
        if frame:
            # A chained exception: its frames follow the message of the earlier one.
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
