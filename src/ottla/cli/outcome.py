"""How a command ends and how it speaks: exit codes, errors for people, tables, JSON, and signals that end it cleanly.

Data goes to standard output, everything else to standard error, so that output can be piped. Nothing heavy is imported
here, because every command pays for it; the options that commands share are in `options.py`.
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
Exit codes: 0 done; 1 failed or refused by the broker; 2 wrong usage; 3 no broker can be reached;
4 the topic, broker, transaction or file does not exist; 130 interrupted before it was done."""


class CommandError(Exception):
    """An error that a person can do something about: printed without a traceback, then the exit code."""

    def __init__(self, message: str, exit_code: int = FAILED) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def usage_error(message: str) -> CommandError:
    return CommandError(message, USAGE)


#: Control characters of C0 and C1, and the ones that reorder text or end a line (bidirectional controls, U+2028, U+2029). A
#: terminal acts on them, and names of groups, topics and clients may hold them. Lone surrogates cannot be printed at all.
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
    """The text with every character that a terminal would act on written as an escape such as `\\x1b`, but for those in `keep`."""
    if text.isprintable():
        return text
    return "".join(
        character.encode("unicode_escape").decode("ascii")
        if _is_unsafe(character) and character not in keep
        else character
        for character in text
    )


def say(text: str) -> None:
    """Tell the person at the terminal; never part of the data. Newlines and tabs stay."""
    print(printable(text, "\n\t"), file=sys.stderr, flush=True)


def show(*lines: str) -> None:
    """Print lines of output. A newline inside one is escaped: a name must not look like a line of its own."""
    print(*map(printable, lines), sep="\n")


def show_text(text: str) -> None:
    """Print text of several lines, which this program laid out."""
    print(printable(text, "\n\t"))


def show_data(text: str) -> None:
    """Print data: as it is into a file or a pipe, escaped on a terminal but for newlines and tabs."""
    print(printable(text, "\n\t") if sys.stdout.isatty() else text)


def print_json(value: Any) -> None:
    text = json.dumps(value, ensure_ascii=False)
    if not text.isprintable():
        # JSON escapes the characters below 0x20 only; the others can only be inside its strings.
        text = "".join(f"\\u{ord(each):04x}" if _is_unsafe(each) else each for each in text)
    print(text)


def print_table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Columns as wide as their widest cell; numbers to the right."""
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
            raise usage_error(f"{option} takes NAME=VALUE, not {text!r}")
        found[name.strip()] = value.strip()
    return found


def exit_code_of(error: BaseException) -> int:
    """What the shell is told about an error of the client."""
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
    """The sentence and exit code for an error that is no fault of this program; None for a bug."""
    if isinstance(error, CommandError):
        return str(error), error.exit_code
    if isinstance(error, FileNotFoundError):
        return f"{error.filename}: no such file or directory", NOT_FOUND
    if isinstance(error, OSError):
        what = f"{error.filename}: " if error.filename else ""
        return f"{what}{error.strerror or error}", FAILED
    # The modules of the client and the configs are loaded already if an error of theirs was raised.
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
    """Ctrl-C and SIGTERM as a flag that a loop looks at, so that nothing is torn in the middle.

    Only inside `waiting()`, where the command waits for something that may never come, does a signal raise
    KeyboardInterrupt. So does a second one, for those who will not wait.
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
            # A signal that came just before must not be slept over.
            if self.asked:
                raise KeyboardInterrupt
            yield
        finally:
            self._waiting = False


def end_on_signals() -> None:
    """Let SIGTERM end a command as Ctrl-C does: through KeyboardInterrupt, so that clean-up runs."""

    def interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)


def quiet_broken_pipe(run: Callable[[], None]) -> None:
    """Run; when the reader of the output went away (`ottla consume … | head`), end without complaint."""
    try:
        run()
        sys.stdout.flush()
    except (BrokenPipeError, SystemExit) as error:
        # typer turns a broken pipe into an exit with 1 of its own.
        if not isinstance(error, BrokenPipeError) and not isinstance(error.__context__, BrokenPipeError):
            raise
        # Python would complain once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(OK) from None
