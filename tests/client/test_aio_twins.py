"""Each blocking client and its asyncio twin have the same methods, with the same parameters and results."""

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


def public(client: type) -> dict[str, Any]:
    return {name: value for name, value in inspect.getmembers(client, callable) if not name.startswith("_")}


def words(annotation: object) -> str:
    """An annotation without the parts that differ between the twins."""
    return str(annotation).replace("Async", "").replace("Awaitable", "").replace(" ", "")


@pytest.mark.parametrize(("blocking", "asynchronous"), PAIRS, ids=["producer", "consumer", "admin"])
def test_the_faces_have_the_same_methods(blocking: type, asynchronous: type) -> None:
    assert {*public(blocking), "start"} == public(asynchronous).keys()


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
    silent = [
        f"{client.__module__}.{name}"
        for client in (blocking, asynchronous)
        for name, method in public(client).items()
        if not inspect.getdoc(method)
    ]
    assert not silent
