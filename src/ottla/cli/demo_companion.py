"""The Spark side of the demo: its own pipeline, whose output is checked, and the optional examples."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from ottla.cli.demo_examples import Examples
from ottla.cli.demo_pipeline import DemoPipeline, missing
from ottla.cli.progress import ProgressLine

if TYPE_CHECKING:
    from ottla.cli.demo import Traffic
    from ottla.client.consumer.sync import Consumer

#: Interval of status checks, and upper bound on the time for the last messages.
LOOK_S = 0.5
FINISH_S_MAX = 60.0


class Companion:
    """The pipelines of the demo. They join when Spark is up; the demo waits only for joined pipelines.

    As a context manager: at its end all their processes are stopped.
    """

    def __init__(self, address: str, folder: Path, examples: Path | None) -> None:
        self._address = address
        self._folder = folder
        self._line = ProgressLine()
        self._looked = 0.0
        self._joined = False
        self._lacks = missing()
        self._pipeline: DemoPipeline | None = None
        self._wanted = examples is not None
        self._examples = None
        if examples is not None and self._lacks is None:
            self._examples = Examples(address, examples, folder)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._examples is not None:
            self._examples.close()
        if self._pipeline is not None:
            self._pipeline.kill()

    def begin(self, line: ProgressLine) -> None:
        """Start the pipelines, or print why they cannot run."""
        self._line = line
        if self._lacks is not None:
            line.note(f"no pipeline: {self._lacks}")
            return
        if (examples := self._examples) is None:
            self._pipeline = DemoPipeline(self._address, self._folder)
        else:
            examples.begin()
            self._pipeline = DemoPipeline(self._address, self._folder, examples.files, examples.settings)
        joins = "a pipeline joins" if examples is None else "four pipelines join"
        line.note(f"{joins} when Spark is up; meanwhile try: ottla pipeline explain {self._pipeline.file}")

    def look(self) -> None:
        if self._pipeline is None or self._pipeline.ended or time.monotonic() - self._looked < LOOK_S:
            return
        self._looked = time.monotonic()
        for note in self._examples.look() if self._examples is not None else ():
            self._line.note(note)
        if not self._pipeline.look():
            return
        if self._pipeline.runs:
            self._joined = True
            self._line.note(
                f"the pipeline runs; try in another terminal:\n  ottla pipeline status {self._pipeline.file}"
            )
        else:
            self._line.note(f"the pipeline ended:\n{self._pipeline.why()}")

    def words(self) -> str:
        if self._pipeline is None:
            return "no pipeline"
        beside = f"  {self._examples.words()}" if self._examples is not None and self._pipeline.runs else ""
        return f"{self._pipeline.words()}{beside}"

    def finish(self, traffic: Traffic, consumer: Consumer) -> dict[str, Any]:
        """Wait until the pipeline has processed the last messages, if it runs, and stop it."""
        if self._pipeline is None:
            return {"state": f"not run: {self._lacks}", "rows": 0, "exactly_once": None}
        if self._examples is not None:
            self._examples.stop_data()
        deadline = time.monotonic() + FINISH_S_MAX
        while self._pipeline.runs and traffic.copied < sum(traffic.produced) and time.monotonic() < deadline:
            traffic.consume(consumer)
            self.look()
            if self._line.due():
                left = sum(traffic.produced) - traffic.copied
                self._line.show(f"the pipeline processes the last {left:,} messages")
        self._stop()
        if self._examples is not None:
            self._examples.read_rest()
        if not self._joined:
            state = (
                "it failed, see above"
                if self._pipeline.ended
                else "Spark was not up in time; run the demo with a larger --seconds"
            )
            return {"state": state, "rows": traffic.copied, "exactly_once": None}
        # The records of its last batch are committed now.
        for _ in range(3):
            traffic.consume(consumer)
        return {"state": "ran", "rows": traffic.copied, "exactly_once": traffic.exactly_once()}

    def outcome(self) -> dict[str, Any]:
        """The output of the examples, if they were requested."""
        if not self._wanted:
            return {}
        return {"examples": self._examples.outcome() if self._examples is not None else None}

    def _stop(self) -> None:
        if self._pipeline is not None and not self._pipeline.ended:
            self._line.clear()
            self._pipeline.stop()
