"""docs/sdk.md and the README: their programs run in order and print what their comments say."""

import re
from pathlib import Path

import pytest

from ottla.client.consumer.settings import ConsumerConfig
from ottla.client.producer.settings import ProducerConfig
from tests.docs_examples import DOCS, programs

SDK = DOCS / "sdk.md"
README = DOCS.parent / "README.md"


@pytest.mark.parametrize("page", [SDK, README], ids=lambda page: page.name)
def test_the_programs_print_what_the_page_says(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    together: dict[str, object] = {}
    blocks = programs(page)
    assert blocks
    for block in blocks:
        exec(compile(block, str(page), "exec"), together)
        expected = re.findall(r"# → (.*)$", block, re.MULTILINE)
        assert capsys.readouterr().out.splitlines() == expected, block


def test_the_settings_and_errors_that_the_page_names_are_there() -> None:
    import ottla.client.errors
    from ottla.client.consumer.poison import PoisonRecord

    text = SDK.read_text()
    rows = re.findall(r"^\| (`[^|]*) \|", text, re.MULTILINE)
    names = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    known = {*ProducerConfig.__dataclass_fields__, *ConsumerConfig.__dataclass_fields__}
    errors = {*vars(ottla.client.errors), PoisonRecord.__name__}
    assert len(names) > 30 and names <= known | errors, names - known - errors
