from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ottla.server.embedded import Broker


@pytest.fixture
def start() -> Iterator[Callable[..., Any]]:
    running: list[Any] = []

    def make(say: Callable[[str], None] = lambda _text: None, **settings: str) -> Any:
        names = {name.replace("_", "."): value for name, value in settings.items()}
        running.append(Broker(config={"log.flush.policy": "page-cache", **names}, say=say))
        return running[-1]

    yield make
    for broker in running:
        broker.close()
