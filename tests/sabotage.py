"""Raises `Injected` inside the broker: in each handler, answer, timer, effect and callback that there is.

What can fail is found in the code: the table of APIs, every class with a deadline, the kinds of effects. So what is added tomorrow is
sabotaged tomorrow. `Sabotage` patches all of them; a test says when to raise.
"""

import importlib
import inspect
import pkgutil
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from ottla import broker, groups, ports, transactions
from ottla.broker.api.shared import api_table
from ottla.broker.core import Broker
from ottla.model.timer_wheel import Periodic, TimerWheel
from ottla.ports import effects
from testkit.injected import Injected

#: The names of the kinds of effects.
EFFECTS = {value: name for name, value in vars(effects).items() if name.isupper() and isinstance(value, int)}
EFFECTS.pop(effects.RETRY_MS)


def timed_classes() -> list[type]:
    """Every class whose objects can be given a deadline."""
    found: dict[type, None] = {}
    for package in (broker, groups, transactions, ports):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            for each in vars(importlib.import_module(module.name)).values():
                if (
                    inspect.isclass(each)
                    and each is not TimerWheel
                    and each.__module__.startswith("ottla.")
                    and not getattr(each, "_is_protocol", False)
                    and "expire" in vars(each)
                    and list(inspect.signature(each.expire).parameters)[1:] == ["now_ms"]
                ):
                    found[each] = None
    return list(found)


def _raise(*_arguments: Any) -> Any:
    raise Injected("an action of a timer")


def timer_kind(timed: Any) -> str:
    action = getattr(timed, "action", None) or getattr(timed, "_action", None)
    return f"timer {type(timed).__name__} {getattr(action, '__qualname__', '')}".rstrip()


class Sabotage:
    """`decide(site)` says whether to raise there now; `seen` and `raised` count."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, decide: Callable[[str], bool]) -> None:
        self._decide = decide
        self._patch = monkeypatch
        self.seen: Counter[str] = Counter()
        self.raised: Counter[str] = Counter()
        self._handlers()
        self._answers()
        self._timers()
        self._turn_ends()

    def at(self, site: str) -> None:
        if self.wants(site):
            raise Injected(site)

    def wants(self, site: str) -> bool:
        self.seen[site] += 1
        if self._decide(site):
            self.raised[site] += 1
            return True
        return False

    def _handlers(self) -> None:
        for key, api in list(api_table.APIS.items()):

            def handle(broker: Any, call: Any, request: Any, now_ms: int, *more: Any, api: Any = api) -> Any:
                self.at(f"handler {api.key}")
                response = api.handler(broker, call, request, now_ms, *more)
                # Half-way, as far as anybody can tell: it has done everything but answer.
                if response is not api_table.NoResponse.DONE:
                    self.at(f"handled {api.key}")
                return response

            self._patch.setitem(api_table.APIS, key, api._replace(handler=handle))

    def _answers(self) -> None:
        encoder_of = api_table.response_encoder

        def response_encoder(key: int, version: int) -> Any:
            encode = encoder_of(key, version)

            def sabotaged(response: Any) -> bytes:
                self.at(f"answer {key}")
                return encode(response)

            return sabotaged

        self._patch.setattr(api_table, "response_encoder", response_encoder)

    def _timers(self) -> None:
        sabotage = self
        for each in timed_classes():
            original = vars(each)["expire"]

            def expire(self: Any, now_ms: int, original: Any = original) -> None:
                if not sabotage.wants(timer_kind(self)):
                    original(self, now_ms)
                elif isinstance(self, Periodic):
                    # Its work raises, not the setting of its next time.
                    action, self.action = self.action, _raise
                    try:
                        original(self, now_ms)
                    finally:
                        self.action = action
                else:
                    raise Injected(timer_kind(self))

            self._patch.setattr(each, "expire", expire)

    def _turn_ends(self) -> None:
        put_off = Broker.put_off

        def sabotaged(broker: Broker, action: Callable[[], None]) -> None:
            put_off(broker, self.after("put off", action))

        self._patch.setattr(Broker, "put_off", sabotaged)

    def effect(self, effect: Any) -> Any:
        """To be called by the performer of an effect; what it should perform."""
        name = EFFECTS[effect[0]]
        self.at(f"effect {name}")
        if callable(effect[-1]):
            return (*effect[:-1], self.after(f"callback of {name}", effect[-1]))
        return effect

    def after(self, site: str, action: Callable[..., Any]) -> Callable[..., Any]:
        """The same action, which may raise at its end."""

        def sabotaged(*arguments: Any) -> Any:
            result = action(*arguments)
            self.at(site)
            return result

        return sabotaged
