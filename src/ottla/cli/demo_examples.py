"""The example pipelines of the demo: their live data and their output.

They run in the same Spark as the demo's pipeline. A `generate.py` process per example produces its data at a
low rate. The output is read from topics and from a database.
"""

from __future__ import annotations

import contextlib
import importlib.util
import shlex
import sqlite3
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ottla.cli.outcome import CommandError

if TYPE_CHECKING:
    from ottla.client.consumer.sync import Consumer

GENERATOR: Final = "generate.py"
#: Upper bound on the time to stop a generator, and to read the rest of the topics.
END_S_MAX: Final = 5.0
POLL_MS: Final = 10
#: Trigger interval: five queries per second would be too many for two cores.
TRIGGER: Final = "4 seconds"


@dataclass(frozen=True, slots=True)
class Example:
    """A pipeline file, its data, its records per second, a name for its output, a command that shows it."""

    file: str
    data: str
    rate: int
    what: str
    look: str

    @property
    def name(self) -> str:
        return Path(self.file).stem


SESSIONS: Final = Example(
    "sessions.yaml",
    "clicks",
    30,
    "visits written",
    "ottla consume visits --bootstrap {brokers} --from-beginning",
)
ORDERS: Final = Example(
    "orders.yaml", "orders", 20, "orders in the table",
    "python -c \"import sqlite3; print(*sqlite3.connect('{database}').execute("
    "'SELECT country, count(*), round(sum(amount)) FROM orders GROUP BY country'), sep='\\n')\"",
)  # fmt: skip
WORDCOUNT: Final = Example(
    "wordcount.py", "lines", 20, "words counted", "ottla consume counts --bootstrap {brokers} "
        "--from-beginning --key"
)  # fmt: skip
EXAMPLES: Final = (SESSIONS, ORDERS, WORDCOUNT)
VISITS: Final = "visits"
COUNTS: Final = "counts"


def check(folder: Path) -> None:
    """Raises `FileNotFoundError` if one of the examples is not there."""
    for name in (*(example.file for example in EXAMPLES), GENERATOR):
        if not (folder / name).is_file():
            raise FileNotFoundError(2, "no such file", str(folder / name))


class Examples:
    """The order of calls: `begin`; run pipelines with `files` and `settings`; `look` a few times per second;
    `stop_data`; `read_rest`; `close`.
    """

    def __init__(self, brokers: str, source: Path, folder: Path) -> None:
        self._brokers = brokers
        self._source = source.resolve()
        self._folder = folder
        self._database = folder / "orders.db"
        self._sending: dict[Example, subprocess.Popen[bytes]] = {}
        self._consumer: Consumer | None = None
        self._seen: set[Example] = set()
        self._visits = 0
        self._words: dict[bytes, int] = {}

    @property
    def files(self) -> list[Path]:
        return [self._source / example.file for example in EXAMPLES]

    @property
    def settings(self) -> list[str]:
        """The variables of the files, as arguments of `ottla pipeline run`."""
        given = {
            "BROKERS": self._brokers,
            "CHECKPOINTS": str(self._folder / "checkpoints"),
            "DATABASE": f"sqlite:///{self._database}",
            "TRIGGER": TRIGGER,
        }
        return [part for name, value in given.items() for part in ("--set", f"{name}={value}")]

    def begin(self) -> None:
        """Create the topics, which the pipelines need at their start, and start the generators."""
        from ottla.client.admin.sync import Admin
        from ottla.client.consumer.sync import Consumer

        self._make_topics()
        with Admin(self._brokers) as admin:
            known = admin.list_topics()
        places = [(topic, each) for topic in (VISITS, COUNTS) for each in range(len(known[topic].partitions))]
        self._consumer = Consumer(
            self._brokers, auto_offset_reset="earliest", isolation_level="read_committed"
        )
        self._consumer.assign(places)
        for example in EXAMPLES:
            self._sending[example] = self._start(example)

    def _make_topics(self) -> None:
        path = self._source / GENERATOR
        spec = importlib.util.spec_from_file_location("ottla_demo_generate", path)
        assert spec is not None and spec.loader is not None
        module: Any = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
            for example in EXAMPLES:
                module.make_topics(self._brokers, example.data)
        except Exception as error:
            raise CommandError(f"{path}: {type(error).__name__}: {error}") from error

    def _start(self, example: Example) -> subprocess.Popen[bytes]:
        command = [sys.executable, str(self._source / GENERATOR), example.data]
        command += ["--brokers", self._brokers, "--rate", str(example.rate)]
        # In its own session: Ctrl-C on the terminal reaches only the demo, which stops it.
        with self._log(example).open("wb") as said:
            return subprocess.Popen(  # noqa: S603  # our own interpreter
                command, stdin=subprocess.DEVNULL, stdout=said, stderr=said, start_new_session=True
            )

    def _log(self, example: Example) -> Path:
        return self._folder / f"{example.data}.log"

    def look(self) -> list[str]:
        """Read new output; returns new messages for the user."""
        self._read()
        notes = []
        for example in EXAMPLES:
            if example not in self._seen and (count := self._count(example)):
                self._seen.add(example)
                notes.append(self._how_to_look(example, count))
            process = self._sending.get(example)
            if process is not None and process.poll() is not None:
                del self._sending[example]
                said = self._log(example).read_text(encoding="utf-8", errors="replace").strip().splitlines()
                notes.append(
                    f"the generator of {example.data} ended: {said[-1] if said else process.returncode}"
                )
        return notes

    def _how_to_look(self, example: Example, count: int) -> str:
        file = shlex.quote(str(self._source / example.file))
        kept = shlex.quote(f"CHECKPOINTS={self._folder / 'checkpoints'}")
        look = example.look.format(brokers=self._brokers, database=self._database)
        return (
            f"{example.file} runs, {count:,} {example.what}; try in another terminal:\n"
            f"  {look}\n  ottla pipeline status {file} --set {kept}"
        )

    def words(self) -> str:
        """Their part of the progress line."""
        return f"examples {len(self._seen)}/{len(EXAMPLES)}"

    def stop_data(self) -> None:
        """Stop the generators."""
        for process in self._sending.values():
            process.terminate()
        deadline_s = time.monotonic() + END_S_MAX
        for process in self._sending.values():
            try:
                process.wait(max(deadline_s - time.monotonic(), 0))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._sending.clear()

    def read_rest(self) -> None:
        """Read to the end of the topics."""
        from ottla.client.admin.sync import Admin

        if self._consumer is None:
            return
        with Admin(self._brokers) as admin:
            ends = admin.list_offsets(dict.fromkeys(self._consumer.assignment(), -1))
        deadline_s = time.monotonic() + END_S_MAX
        # An open transaction of a stopped batch ends the readable part.
        while time.monotonic() < deadline_s and any(
            self._consumer.position(place) < end.offset for place, end in ends.items()
        ):
            self._read()

    def outcome(self) -> dict[str, dict[str, Any]]:
        """The output of each example, by name."""
        return {
            example.name: {"file": example.file, "out": self._count(example), "what": example.what}
            for example in EXAMPLES
        }

    def _read(self) -> None:
        if self._consumer is None:
            return
        for place, records in self._consumer.poll(POLL_MS, 5_000).items():
            if place.topic == VISITS:
                self._visits += len(records)
                continue
            for record in records:
                # Each record has the new count of a word.
                self._words[bytes(record.key or b"")] = int(record.value or b"0")

    def _count(self, example: Example) -> int:
        if example is SESSIONS:
            return self._visits
        return self._orders() if example is ORDERS else sum(self._words.values())

    def _orders(self) -> int:
        """The rows of the table that the pipeline creates."""
        with (
            contextlib.suppress(sqlite3.OperationalError),
            contextlib.closing(sqlite3.connect(f"file:{self._database}?mode=ro", uri=True)) as connection,
        ):
            return int(connection.execute("SELECT count(*) FROM orders").fetchone()[0])
        return 0

    def close(self) -> None:
        self.stop_data()
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None
