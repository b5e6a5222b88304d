"""The docstrings of the public classes follow one convention, and their examples run against a real broker.

An example finds `broker`, a topic `orders` with three records, and one open client of each kind: `producer`, `consumer` (group
`billing`) and `admin`. Examples of `ottla.aio` are typed as in `python -m asyncio`: with `await` outside a function.
"""

import ast
import asyncio
import contextlib
import doctest
import inspect
import io
import traceback
from collections.abc import AsyncIterator, Callable, Iterator
from types import FunctionType
from typing import Any

import pytest

import ottla
import ottla.aio
import ottla.errors
from ottla.client.producer.batches import SendFuture

BLOCKING = (ottla.Producer, ottla.Consumer, ottla.Admin)
ASYNCIO = (ottla.aio.Producer, ottla.aio.Consumer, ottla.aio.Admin)
ERRORS = tuple(getattr(ottla.errors, name) for name in ottla.errors.__all__)

NAMES = {kind: f"ottla.{kind.__name__}" for kind in (*BLOCKING, ottla.Broker)} | {
    kind: f"ottla.aio.{kind.__name__.removeprefix('Async')}" for kind in ASYNCIO
}


def public(kind: type) -> Iterator[tuple[str, Callable[..., Any]]]:
    """The public methods of a class, those that it inherits included."""
    for name, method in inspect.getmembers(kind, inspect.isfunction):
        if not name.startswith("_") or name in ("__iter__", "__aiter__"):
            yield name, method


def examples() -> Iterator[Any]:
    parser = doctest.DocTestParser()
    for kind, shown in [*NAMES.items(), (SendFuture, "SendFuture"), (ottla.KafkaError, "ottla.KafkaError")]:
        for name, thing in [("", kind), *public(kind)]:
            found = parser.get_examples(inspect.getdoc(thing) or "")
            if found:
                yield pytest.param(found, kind in ASYNCIO, id=f"{shown}.{name}".rstrip("."))


@contextlib.asynccontextmanager
async def asyncio_clients(address: str) -> AsyncIterator[dict[str, Any]]:
    async with (
        ottla.aio.Producer(address) as producer,
        ottla.aio.Consumer(address, group_id="billing", auto_offset_reset="earliest") as consumer,
        ottla.aio.Admin(address) as admin,
    ):
        yield {"producer": producer, "consumer": consumer, "admin": admin}


@contextlib.contextmanager
def blocking_clients(address: str) -> Iterator[dict[str, Any]]:
    with (
        ottla.Producer(address) as producer,
        ottla.Consumer(address, group_id="billing", auto_offset_reset="earliest") as consumer,
        ottla.Admin(address) as admin,
    ):
        yield {"producer": producer, "consumer": consumer, "admin": admin}


def typed(example: doctest.Example, names: dict[str, Any]) -> Any:
    """What happens when this is typed: the coroutine of what awaits, else None."""
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    return FunctionType(compile(example.source, "<example>", "single", flags, True), names)()


def check(example: doctest.Example, shown: io.StringIO, error: Exception | None) -> None:
    if error is not None:
        shown.write("Traceback (most recent call last):\n" + traceback.format_exception_only(error)[-1])
    wanted = example.want
    if example.exc_msg is not None:
        wanted = "Traceback (most recent call last):\n" + example.exc_msg
    assert shown.getvalue() == wanted, example.source
    shown.seek(0)
    shown.truncate()


async def run_asyncio(found: list[doctest.Example], address: str, names: dict[str, Any]) -> None:
    shown = io.StringIO()
    async with asyncio_clients(address) as clients:
        names |= clients
        with contextlib.redirect_stdout(shown):
            for example in found:
                error = None
                try:
                    waiting = typed(example, names)
                    if inspect.iscoroutine(waiting):
                        await waiting
                except Exception as raised:
                    error = raised
                check(example, shown, error)


def run_blocking(found: list[doctest.Example], address: str, names: dict[str, Any]) -> None:
    shown = io.StringIO()
    with blocking_clients(address) as clients, contextlib.redirect_stdout(shown):
        names |= clients
        for example in found:
            error = None
            try:
                typed(example, names)
            except Exception as raised:
                error = raised
            check(example, shown, error)


@pytest.mark.parametrize(("found", "is_asyncio"), list(examples()))
def test_an_example_prints_what_it_says(found: list[doctest.Example], is_asyncio: bool) -> None:
    with ottla.Broker(config={"group.initial.rebalance.delay.ms": "0"}) as broker:
        with ottla.Producer(broker.address) as producer:
            for value in (b"one", b"two", b"three"):
                producer.send("orders", value)
        names = {"ottla": ottla, "broker": broker}
        if is_asyncio:
            asyncio.run(run_asyncio(found, broker.address, names))
        else:
            run_blocking(found, broker.address, names)


def sections(text: str) -> dict[str, str]:
    """A docstring by its sections; the summary line is "", what follows it "text"."""
    summary, _, rest = text.partition("\n")
    found, current = {"": summary, "text": ""}, "text"
    for line in rest.splitlines():
        if line in ("Args:", "Returns:", "Raises:", "Example:"):
            current = line.removesuffix(":")
            found[current] = ""
        else:
            found[current] += line + "\n"
    return found


@pytest.mark.parametrize("kind", NAMES, ids=NAMES.values())
def test_the_docstrings_follow_the_convention(kind: type) -> None:
    wrong = []
    for name, method in public(kind):
        text = sections(inspect.getdoc(method) or "")
        signature = inspect.signature(method)
        parameters = [each for each in signature.parameters if each != "self"]
        order = [each for each in text if each in ("Args", "Returns", "Raises", "Example")]
        documented = [
            line.split(":")[0].strip() for line in text.get("Args", "").splitlines() if line[4:5].strip()
        ]
        returns = signature.return_annotation not in (None, "None") and not name.startswith("__")
        if (
            not text[""].endswith((".", ")."))
            or parameters != documented
            or returns != ("Returns" in text)
            or order != sorted(order, key=["Args", "Returns", "Raises", "Example"].index)
            or ("Example" not in text and kind not in ASYNCIO)
        ):
            wrong.append(name)
    assert not wrong


@pytest.mark.parametrize(("blocking", "asynchronous"), list(zip(BLOCKING, ASYNCIO, strict=True)))
def test_both_twins_document_the_same(blocking: type, asynchronous: type) -> None:
    there = dict(public(asynchronous))
    for name, method in public(blocking):
        twin = there["__aiter__" if name == "__iter__" else name]
        here, other = (sections(inspect.getdoc(each) or "") for each in (method, twin))
        assert here.get("Raises", "").strip() == other.get("Raises", "").strip(), name


@pytest.mark.parametrize("kind", ERRORS)
def test_every_error_says_when_it_is_raised(kind: type) -> None:
    summary = (inspect.getdoc(kind) or "").partition("\n")[0]
    assert summary.endswith(".") and inspect.getdoc(kind) != inspect.getdoc(kind.__base__)
