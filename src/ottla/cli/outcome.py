"""Output and exit of a command: exit codes, error messages, tables, JSON, clean ends after signals.

Data goes to standard output, everything else to standard error, so that output can be piped. Nothing heavy is
imported here, because every command loads this module. Shared options are in `options.py`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn

OK = 0
FAILED = 1
USAGE = 2
UNREACHABLE = 3
NOT_FOUND = 4
INTERRUPTED = 130

EXIT_CODES = """\
Exit codes: 0 success; 1 failed or rejected by the broker; 2 wrong usage; 3 no broker is reachable;
4 the topic, broker, transaction or file does not exist; 130 interrupted."""


class CommandError(Exception):
    """An error that the user can fix: printed without a traceback, then the exit code."""

    def __init__(self, message: str, exit_code: int = FAILED) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def usage_error(message: str) -> CommandError:
    return CommandError(message, USAGE)


#: C0 and C1 control characters, bidirectional controls, and line ends (U+2028, U+2029). A terminal acts on
#: them, and names of groups, topics and clients may contain them. Lone surrogates cannot be printed at all.
_UNSAFE = frozenset(
    map(
        chr,
        (
            *range(0x20),
            *range(0x7F, 0xA0),
            0x61C,
            0x200E,
            0x200F,
            *range(0x2028, 0x202F),
            *range(0x2066, 0x206A),
        ),
    )
)


def _is_unsafe(character: str) -> bool:
    return character in _UNSAFE or "\ud800" <= character <= "\udfff"


def printable(text: str, keep: str = "") -> str:
    """The text with unsafe characters written as escapes such as `\\x1b`, except those in `keep`."""
    if text.isprintable():
        return text
    return "".join(
        character.encode("unicode_escape").decode("ascii")
        if _is_unsafe(character) and character not in keep
        else character
        for character in text
    )


def say(text: str) -> None:
    """Print a message for the user to standard error. Newlines and tabs stay."""
    print(printable(text, "\n\t"), file=sys.stderr, flush=True)


def show(*lines: str) -> None:
    """Print lines of output. A newline in a line is escaped: a name must not look like a separate line."""
    print(*map(printable, lines), sep="\n")


def show_text(text: str) -> None:
    """Print text of several lines that this program formatted."""
    print(printable(text, "\n\t"))


def show_data(text: str) -> None:
    """Print data: raw into a file or a pipe; on a terminal escaped, except newlines and tabs."""
    print(printable(text, "\n\t") if sys.stdout.isatty() else text)


def print_json(value: Any) -> None:
    text = json.dumps(value, ensure_ascii=False)
    if not text.isprintable():
        # `json` escapes only characters below 0x20. All others are inside strings, so they can be escaped
        # here.
        text = "".join(f"\\u{ord(each):04x}" if _is_unsafe(each) else each for each in text)
    print(text)


def print_table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print columns as wide as their widest cell; numbers are right-aligned."""
    cells = [["" if cell is None else printable(str(cell)) for cell in row] for row in rows]
    right = [
        bool(cells) and all(row[column].lstrip("-").replace(",", "").isdigit() for row in cells)
        for column in range(len(head))
    ]
    widths = [max([len(head[column])] + [len(row[column]) for row in cells]) for column in range(len(head))]
    for row in [list(head), *cells]:
        parts = [
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(row, widths, right, strict=True)
        ]
        print("  ".join(parts).rstrip())


def pairs(texts: Iterable[str], option: str) -> dict[str, str]:
    """NAME=VALUE arguments as a dictionary."""
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise usage_error(f"{option} takes NAME=VALUE, but got {text!r}")
        found[name.strip()] = value.strip()
    return found


def exit_code_of(error: BaseException) -> int:
    """The exit code for an error of the client."""
    from ottla.client import errors

    if isinstance(error, errors.SeveralFailed):
        codes = {exit_code_of(each) for each in error.errors.values()}
        return codes.pop() if len(codes) == 1 else FAILED
    if isinstance(error, (errors.BrokerUnreachable, errors.NotKafka, errors.AuthenticationFailed)):
        return UNREACHABLE
    if isinstance(error, (errors.TopicNotFound, errors.BrokerNotFound, errors.TransactionalIdNotFound)):
        return NOT_FOUND
    if isinstance(error, errors.SettingError):
        return USAGE
    return FAILED


def describe_failure(error: BaseException) -> tuple[str, int] | None:
    """The message and exit code of an expected error; None for a bug."""
    if isinstance(error, CommandError):
        return str(error), error.exit_code
    if isinstance(error, FileNotFoundError):
        return f"{error.filename}: no such file or directory", NOT_FOUND
    if isinstance(error, OSError):
        what = f"{error.filename}: " if error.filename else ""
        return f"{what}{error.strerror or error}", FAILED
    # If one of these errors was raised, its module is loaded already.
    if "ottla.client.errors" in sys.modules:
        from ottla.client.errors import KafkaError, SettingError

        if isinstance(error, (KafkaError, SettingError)):
            return str(error), exit_code_of(error)
    if "ottla.model.errors" in sys.modules:
        from ottla.model.errors import Refusal

        if isinstance(error, Refusal):
            return str(error), USAGE
    return None


class Stop:
    """Ctrl-C and SIGTERM as a flag that a loop checks, so that no step is interrupted in the middle.

    Inside `waiting()`, where the command waits without a limit, a signal raises KeyboardInterrupt. A second
    signal always does.
    """

    def __init__(self) -> None:
        self.asked = False
        self._waiting = False
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._signalled)

    def _signalled(self, _number: int, _frame: FrameType | None) -> None:
        again, self.asked = self.asked, True
        if self._waiting or again:
            raise KeyboardInterrupt

    @contextmanager
    def waiting(self) -> Iterator[None]:
        self._waiting = True
        try:
            # A signal just before this must not be missed.
            if self.asked:
                raise KeyboardInterrupt
            yield
        finally:
            self._waiting = False


def end_on_signals() -> None:
    """Let SIGTERM raise KeyboardInterrupt like Ctrl-C, so that clean-up runs."""

    def interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)


def quiet_broken_pipe(run: Callable[[], None]) -> None:
    """Run; exit with 0 if the reader of the output ended (`ottla consume … | head`)."""
    try:
        run()
        sys.stdout.flush()
    except (BrokenPipeError, SystemExit) as error:
        # typer turns a broken pipe into exit code 1.
        if not isinstance(error, BrokenPipeError) and not isinstance(error.__context__, BrokenPipeError):
            raise
        # Python would raise again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(OK) from None
