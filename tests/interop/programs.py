"""Runs foreign programs: a command to its end, or one that is talked to while it runs.

The programs under `java/`, `go/` and `js/` take an address and what to do, do it, and print one JSON document with what
they saw. They judge nothing: the tests compare what was seen with what should be.
"""

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.interop.members import Member

HERE = Path(__file__).resolve().parent
CACHE = HERE / ".cache"

#: Longer than anything healthy takes; a fetch over a slow network is healthy.
PATIENCE_S = 300

#: Commands are many and short here, so the JVM had better start soon than run fast.
JVM_OPTIONS = [
    "-XX:TieredStopAtLevel=1",
    "-XX:+UseSerialGC",
    "-Xshare:auto",
    "-Xmx256m",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
]

#: Where the tools of Apache Kafka lie; one has stayed with the broker's jar.
TOOL_CLASSES = {
    "ConfigCommand": "kafka.admin.ConfigCommand",
    "ConsoleConsumer": "org.apache.kafka.tools.consumer.ConsoleConsumer",
}


class Said(NamedTuple):
    """What a program printed."""

    out: str
    errors: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()


def run(
    command: Sequence[str],
    *,
    text: str = "",
    code: int = 0,
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> Said:
    """Run it to its end; `code` is the exit status that it should have."""
    done = subprocess.run(
        command,
        input=text,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
        cwd=folder,
        env={**os.environ, **(environment or {})},
    )
    words = f"{' '.join(command)}\nended with {done.returncode}\n{done.stdout}\n{done.stderr}"
    assert done.returncode == code, words
    return Said(done.stdout, done.stderr)


class Program:
    """A program of ours on a foreign client."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        self._command = list(command)
        self._environment = dict(environment or {})

    def see(self, *arguments: str) -> Any:
        """Run it; the JSON that it printed. A client that complains of the broker does so on standard error."""
        said = run([*self._command, *arguments], environment=self._environment)
        assert said.errors == "", said.errors
        return json.loads(said.out)

    def hear(self, *arguments: str) -> Said:
        """Run it; all that it said."""
        return run([*self._command, *arguments], environment=self._environment)

    def join(self, *arguments: str) -> Member:
        """Start it as a member of a group."""
        return Member([*self._command, *arguments], self._environment)

    def talk(self, *arguments: str) -> "Conversation":
        """Start it, to talk with it line by line."""
        return Conversation([*self._command, *arguments], self._environment)


class Conversation:
    """A running program that prints a line when it has done a part, and reads one to go on."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
        )

    def __enter__(self) -> "Conversation":
        return self

    def __exit__(self, *exception: object) -> None:
        self._process.kill()
        self._process.communicate()

    def listen(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"the program ended with {self._process.wait()}"
        return json.loads(line)

    def go_on(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()


class Java:
    """The class path of one release of Apache Kafka, and the Java that runs it."""

    def __init__(self, java: str, libraries: Sequence[Path]) -> None:
        self._java = java
        self.class_path = os.pathsep.join(str(folder / "*") for folder in libraries)

    def command(self, classes: Path, main: str, *options: str) -> list[str]:
        path = os.pathsep.join((str(classes), self.class_path))
        return [self._java, *JVM_OPTIONS, *options, "-cp", path, main]

    def tool(self, name: str, *arguments: str, text: str = "", code: int = 0) -> Said:
        main = TOOL_CLASSES.get(name, f"org.apache.kafka.tools.{name}")
        return run([self._java, *JVM_OPTIONS, "-cp", self.class_path, main, *arguments], text=text, code=code)
