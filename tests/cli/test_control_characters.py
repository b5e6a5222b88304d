"""Names with control characters: no command prints them raw to a terminal, and JSON stays valid."""

import io
import re
import sys
from contextlib import closing
from pathlib import Path

import pytest

import ottla.cli
from ottla.cli import outcome
from ottla.cli.progress import ProgressLine
from testkit.fuzz.sockets import Asker
from tests.cli.conftest import Run

FIND_COORDINATOR, OFFSET_COMMIT, INIT_PRODUCER_ID = 10, 8, 22
#: Terminal title, clear (C0 and C1), backspace, bell, bidirectional override, new line, NUL.
EVIL = "evil\x1b]0;title\x07\x9b2J\x1b[2J\b\r\nforged line\x7f\u202egnp\u2028x\x00"
RAW = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")


@pytest.fixture
def evil_group(ottla_address: str, topic_name: str, run: Run) -> str:
    """A group whose id is full of control characters, with one committed offset; the offset's metadata, too."""
    assert run("topic", "create", topic_name).code == 0
    name = f"{topic_name}{EVIL}"
    with closing(Asker(ottla_address)) as asker:
        asker.ask(FIND_COORDINATOR, 4, key_type=0, coordinator_keys=[name])
        row = {
            "partition_index": 0, "committed_offset": 0, "committed_leader_epoch": -1, "committed_metadata": EVIL,
        }  # fmt: skip
        while True:
            answer = asker.ask(
                OFFSET_COMMIT, 8, group_id=name, generation_id_or_member_epoch=-1, member_id="",
                group_instance_id=None, topics=[{"name": topic_name, "partitions": [row]}],
            )  # fmt: skip
            code = answer.topics[0].partitions[0].error_code.value
            # The coordinator may still be loading its log.
            if code not in (14, 15, 16):
                break
    assert code == 0
    return name


@pytest.mark.parametrize("form", [(), ("--json",)], ids=["text", "json"])
def test_a_group_id_with_control_characters(
    run: Run, evil_group: str, topic_name: str, form: tuple[str, ...]
) -> None:
    # A process argument cannot contain a NUL, so only the list shows this group.
    listed = run("group", "list", *form)
    assert listed.code == 0 and RAW.findall(listed.out) == []
    if form:
        assert evil_group in [row["group"] for row in listed.json]
        return
    [line] = [line for line in listed.out.splitlines() if topic_name in line]
    assert r"evil\x1b]0;title\x07\x9b2J\x1b[2J\x08\r\nforged line\x7f\u202egnp\u2028x\x00" in line
    assert not any(line.startswith("forged") for line in listed.out.splitlines())


def test_the_broker_repeats_a_name_and_the_error_is_escaped(run: Run) -> None:
    ended = run("topic", "describe", "no\x1b[2Jsuch\x9btopic")
    assert ended.code != 0
    assert RAW.findall(ended.err) == [] and r"\x1b[2J" in ended.err


def test_tables_lines_json_and_progress(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome.print_table(["NAME", "N"], [[EVIL, 1], ["plain", 20]])
    outcome.show(EVIL)
    outcome.print_json({EVIL: [EVIL, "\ud800"]})
    outcome.say(EVIL)
    outcome.show_text(EVIL)
    seen = capsys.readouterr()
    assert RAW.findall(seen.out + seen.err) == []
    table = seen.out.splitlines()[:3]
    # Column widths follow the printed text.
    assert len({len(line) for line in table[1:]}) == 1
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", terminal)
    ProgressLine().show(EVIL)
    assert RAW.findall(terminal.getvalue().removeprefix("\r")) == []


def test_data_is_escaped_on_a_terminal_only(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome.show_data(EVIL)
    assert capsys.readouterr().out == EVIL + "\n"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    outcome.show_data(EVIL + "\ta")
    seen = capsys.readouterr().out
    assert RAW.findall(seen.replace("\t", "")) == [] and "\ta" in seen


def test_text_of_every_script_stays_as_it_is() -> None:
    for text in ("größe", "заказы", "注文\u3000一", "طلبات", "👩\u200d🚀", "a\u00a0b"):
        assert outcome.printable(text) == text


def test_every_command_prints_through_the_one_function() -> None:
    folder = Path(ottla.cli.__file__).parent
    bare = re.compile(r"(?<![\w.])print\((?!\*sqlite3)")
    offenders = {
        path.name
        for path in folder.glob("*.py")
        for line in path.read_text().splitlines()
        if bare.search(line) and "def print(" not in line
    }
    assert offenders == {"outcome.py", "progress.py"}
