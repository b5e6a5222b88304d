"""A standalone Spark cluster on this machine: a master and workers of one core each, from the scripts that pyspark brings.

Every process is one we started, and is ended by its pid; an executor ends with its worker.
"""

import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Self

import pyspark

from ottla.spark.java import find_java

PATIENCE_S = 60.0
SPARK_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"


class Node:
    """A master or a worker; what it logs is in `log`."""

    def __init__(self, main: str, arguments: list[str], log: Path, says: str) -> None:
        home = find_java()
        environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
        environment |= {"JAVA_HOME": home} if home else {}
        self._output = log.open("w")
        self._process = subprocess.Popen(
            [str(SPARK_CLASS), f"org.apache.spark.deploy.{main}", "--host", "127.0.0.1", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
            # Its executors are of its group, and nothing else is.
            start_new_session=True,
        )
        self._says = re.compile(says)
        self._found: re.Match[str] | None = None
        self._said = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self._log = log

    def _read(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._output.write(line)
            self._output.flush()
            if self._found is None and (match := self._says.search(line)):
                self._found = match
                self._said.set()
        self._said.set()

    def wait(self) -> str:
        """What it says when it is ready."""
        self._said.wait(PATIENCE_S)
        assert self._found is not None, self._log.read_text()
        return self._found[1]

    def kill(self) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._reader.join(PATIENCE_S)
        assert self._process.stderr is not None
        self._process.stderr.close()
        self._output.close()


class SparkCluster:
    """`with SparkCluster(folder, workers=2) as cluster`: its address is `cluster.master`."""

    def __init__(self, folder: Path, *, workers: int) -> None:
        self._folder = folder
        self._count = workers
        self._nodes: list[Node] = []
        self.master = ""

    def __enter__(self) -> Self:
        try:
            # Ports that are free, of the web pages too, which nobody looks at.
            master = self._start(
                "master.Master", ["--port", "0", "--webui-port", "0"], r"Starting Spark master at (\S+)"
            )
            self.master = master.wait()
            self.workers = [self.start_worker(number) for number in range(self._count)]
            for worker in self.workers:
                worker.wait()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        for node in reversed(self._nodes):
            node.kill()

    def start_worker(self, number: int) -> Node:
        given = ["--cores", "1", "--memory", "1g", "--port", "0", "--webui-port", "0"]
        given += ["--work-dir", str(self._folder / f"worker-{number}"), self.master]
        return self._start("worker.Worker", given, r"(Successfully registered) with master")

    def finished(self, number: int) -> int:
        """How many tasks that worker's executors say they have finished."""
        logs = (self._folder / f"worker-{number}").glob("app-*/*/stderr")
        return sum(log.read_text(errors="replace").count("Finished task") for log in logs)

    def _start(self, main: str, arguments: list[str], says: str) -> Node:
        node = Node(main, arguments, self._folder / f"node-{len(self._nodes)}.log", says)
        self._nodes.append(node)
        return node
