"""Both faces of each client are one: the same methods, with the same parameters and results."""

import inspect
from typing import Any

import pytest

import ottla
import ottla.aio

PAIRS = [
    (ottla.Producer, ottla.aio.Producer),
    (ottla.Consumer, ottla.aio.Consumer),
    (ottla.Admin, ottla.aio.Admin),
]

#: What the asyncio core has for its blocking face to call, and nobody else.
BETWEEN_FACES = {
    "Producer": {"commit_or_abort", "find_topic", "not_queued"},
    "Consumer": {
        "assigning", "closing", "committing", "committing_async", "has_work", "notify", "poll_begins", "poll_ends",
        "reading_committed", "subscribing", "take", "take_columns", "unsubscribing", "work",
    },
    "Admin": set(),
}  # fmt: skip


def public(client: type) -> dict[str, Any]:
    return {name: value for name, value in inspect.getmembers(client, callable) if not name.startswith("_")}


def words(annotation: object) -> str:
    """An annotation without what must differ between the faces."""
    return str(annotation).replace("Async", "").replace("Awaitable", "").replace(" ", "")


@pytest.mark.parametrize(("blocking", "asynchronous"), PAIRS, ids=["producer", "consumer", "admin"])
def test_the_faces_have_the_same_methods(blocking: type, asynchronous: type) -> None:
    here, there = public(blocking).keys(), public(asynchronous).keys()
    between = BETWEEN_FACES[blocking.__name__]
    assert between <= there, "the list above names what is gone"
    # An asyncio client cannot connect while it is made.
    assert here == there - between - {"start"}


@pytest.mark.parametrize(("blocking", "asynchronous"), PAIRS, ids=["producer", "consumer", "admin"])
def test_the_methods_take_and_give_the_same(blocking: type, asynchronous: type) -> None:
    there = public(asynchronous)
    different = {}
    for name, method in public(blocking).items():
        signatures = [inspect.signature(each) for each in (method, there[name])]
        shown = [
            (
                [
                    (each.name, each.kind, each.default, words(each.annotation))
                    for each in one.parameters.values()
                ],
                words(one.return_annotation),
            )
            for one in signatures
        ]
        if shown[0] != shown[1]:
            different[name] = signatures
    assert not different


@pytest.mark.parametrize(("blocking", "asynchronous"), PAIRS, ids=["producer", "consumer", "admin"])
def test_every_method_says_what_it_does(blocking: type, asynchronous: type) -> None:
    between = BETWEEN_FACES[blocking.__name__]
    silent = [
        f"{client.__module__}.{name}"
        for client in (blocking, asynchronous)
        for name, method in public(client).items()
        if name not in between and not inspect.getdoc(method)
    ]
    assert not silent
