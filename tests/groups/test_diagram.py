"""The page of states is what the table says."""

from pathlib import Path

from ottla.groups.classic_group import TRANSITIONS
from ottla.groups.diagram import render

PAGE = Path(__file__).parents[2] / "docs" / "groups.md"


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == render(), "`make docs` writes it anew"


def test_every_transition_is_drawn() -> None:
    for (begin, event), end in TRANSITIONS.items():
        assert f"{begin.value} --> {end.value} : {event.value}\n" in render()
