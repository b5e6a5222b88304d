import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from ottla.client.errors import AuthenticationFailed, ConnectionLost
from ottla.client.hedged_request import AllFailed, first_answer

Ask = Callable[[str], Coroutine[Any, Any, str]]


def asking(asked: list[str], ended: list[str]) -> Ask:
    """One who is silent, one who fails, one who refuses a password, and others who answer."""

    async def ask(name: str) -> str:
        asked.append(name)
        if name == "silent":
            try:
                await asyncio.sleep(60)
            finally:
                ended.append(name)
        if name.startswith("failing"):
            raise ConnectionLost(f"{name} broke")
        if name == "stranger":
            raise AuthenticationFailed("wrong password")
        return name

    return ask


def run(*names: str) -> tuple[str, list[str], list[str]]:
    asked: list[str] = []
    ended: list[str] = []
    answer = asyncio.run(asyncio.wait_for(first_answer(names, asking(asked, ended), hedge_s=0.02), 30))
    return answer, asked, ended


def test_one_that_answers_is_enough() -> None:
    assert run("one", "other") == ("one", ["one"], [])


def test_the_next_is_asked_when_one_has_failed_or_is_silent_and_who_is_silent_is_let_go() -> None:
    assert run("failing", "silent", "one", "other") == ("one", ["failing", "silent", "one"], ["silent"])


def test_when_all_have_failed_each_is_told_of() -> None:
    with pytest.raises(AllFailed, match="failing-1 broke; failing-2 broke") as raised:
        run("failing-1", "failing-2")
    assert len(raised.value.failures) == 2


def test_a_wrong_password_is_not_tried_everywhere() -> None:
    with pytest.raises(AuthenticationFailed):
        run("stranger", "one")
