"""Spark with its own Kafka connector, in a separate environment: from PyPI and Maven.

It is fetched once into the cache of `bench`; the interop tests use the same. 4.0.0 is the last release whose
connector is complete on Maven Central: later ones lack `spark-token-provider-kafka-0-10`. Real-time mode
requires 4.1. For it, a later release is combined with the token provider of 4.0.0, which is used only with
delegation tokens.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bench.kafka import CACHE, KafkaUnavailable, find_java

POM = """\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>bench</groupId><artifactId>spark-connector</artifactId><version>1</version>
  <dependencyManagement><dependencies>
    <dependency>
      <groupId>org.apache.spark</groupId><artifactId>spark-token-provider-kafka-0-10_2.13</artifactId>
      <version>4.0.0</version>
    </dependency>
  </dependencies></dependencyManagement>
  <dependencies>
    <dependency>
      <groupId>org.apache.spark</groupId><artifactId>spark-sql-kafka-0-10_2.13</artifactId><version>{version}</version>
      <exclusions>
        <exclusion><groupId>org.apache.hadoop</groupId><artifactId>*</artifactId></exclusion>
        <exclusion><groupId>org.scala-lang</groupId><artifactId>*</artifactId></exclusion>
      </exclusions>
    </dependency>
  </dependencies>
</project>
"""
DEFAULT = "4.0.0"
#: The newest release with a connector, for real-time mode.
REAL_TIME = "4.2.0"


class SparkUnavailable(RuntimeError):
    """Spark's connector cannot run here. The message says what is missing and what to do."""


@dataclass(frozen=True, slots=True)
class Spark:
    """A release with its connector. Sessions use the jars as `spark.jars`."""

    version: str
    python: Path
    jars: str

    @property
    def environment(self) -> Mapping[str, str]:
        """The environment of its processes: without our packages, and with its own workers."""
        ours = ("PYTHONPATH", "SPARK_HOME", "VIRTUAL_ENV")
        kept = {name: value for name, value in os.environ.items() if name not in ours}
        return {**kept, "PYSPARK_PYTHON": str(self.python), "SPARK_CONNECTOR_JARS": self.jars}


def fetch(version: str = DEFAULT, *, cache: Path = CACHE) -> Spark:
    """Return this release, from the cache or from PyPI and Maven Central."""
    try:
        find_java()
    except KafkaUnavailable as error:
        raise SparkUnavailable(str(error)) from None
    home = cache / f"spark-{version}"
    if not (home / "jars").is_dir():
        cache.mkdir(parents=True, exist_ok=True)
        (cache / ".gitignore").write_text("*\n")
        home.mkdir(exist_ok=True)
        _fetch_jars(home, version)
    python = home / "venv" / "bin" / "python"
    if not (home / "installed").exists():
        _install(home, version)
    jars = ",".join(str(path) for path in sorted((home / "jars").glob("*.jar")))
    return Spark(version, python, jars)


def _fetch_jars(home: Path, version: str) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise SparkUnavailable("no `mvn` on the PATH: install Apache Maven, which fetches Spark's connector")
    _say(f"fetching the Kafka connector of Spark {version} with Maven (once) ...")
    (home / "pom.xml").write_text(POM.format(version=version))
    # Copied to a temporary folder and renamed, so that an interrupted download is not used.
    arriving = home / "arriving"
    shutil.rmtree(arriving, ignore_errors=True)
    goal = ["dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={arriving}"]
    _run([maven, "-B", "-q", "-f", str(home / "pom.xml"), *goal], "Maven could not fetch the connector")
    arriving.rename(home / "jars")


def _install(home: Path, version: str) -> None:
    _say(f"installing pyspark {version} in an environment of its own (once, 430 MB) ...")
    shutil.rmtree(home / "venv", ignore_errors=True)
    _run([sys.executable, "-m", "venv", str(home / "venv")], "no environment could be made")
    # Without pip's cache, which would keep a second large copy.
    install = ["-m", "pip", "install", "--quiet", "--no-cache-dir", f"pyspark=={version}"]
    _run([str(home / "venv" / "bin" / "python"), *install], f"pyspark {version} could not be installed")
    # A marker file, because an environment cannot be renamed: its programs contain its path.
    (home / "installed").write_text(version)


def _run(command: list[str], what: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        reason = (done.stdout + done.stderr).strip()[-1500:]
        raise SparkUnavailable(f"{what}; check the network settings and try again:\n{reason}")


def _say(text: str) -> None:
    print(f"bench: {text}", file=sys.stderr, flush=True)
