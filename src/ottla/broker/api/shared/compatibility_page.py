"""The manual page of the protocol's APIs: what is served in which versions, and what is not and why.

`python -m ottla.broker.api.shared.compatibility_page > docs/compatibility.md` renews it.
A test holds the file equal to `render()`, so the page cannot drift from what is advertised.
"""

from __future__ import annotations

import re
from typing import Final

import ottla.broker.api as _api
from ottla.broker.api.shared.api_table import APIS
from ottla.broker.api.shared.not_served import NOT_SERVED
from ottla.model.features import FEATURES
from ottla.wire.schema import api_name

INTRODUCTION = """\
# Compatibility

<!-- Rendered by `python -m ottla.broker.api.shared.compatibility_page`; edit the APIs in `src/ottla/broker/api/` instead. -->

Any client of Apache Kafka can talk to ottla as long as it uses what is listed here. ApiVersions advertises exactly these APIs
and versions.

## Served

"""

#: References to the claims that the tests show; they say nothing to a reader of the page.
_CLAIMS: Final = re.compile(r" \([A-Z]\d+\b[^)]*\)")

NOT_SERVED_INTRODUCTION = """
## Not served

They are not advertised; a client that sends one nevertheless has its connection closed.

| API | key | why |
|---|---|---|
"""


FEATURES_INTRODUCTION = """
## Features

ApiVersions lists these cluster-wide features, and `kafka-features describe` prints them. Each has one level, so the supported minimum,
the supported maximum and the finalized level are the same. `kafka-features upgrade --release-version 4.0` asks for exactly these levels and
succeeds; any other level is refused with INVALID_UPDATE_VERSION. A feature at level 0 is one that Kafka has and this broker does not.

| feature | level | meaning |
|---|---|---|
"""


def render() -> str:
    """The whole page."""
    parts = [INTRODUCTION, "| API | key | versions | what it does |\n|---|---|---|---|\n"]
    for api in sorted(APIS.values(), key=lambda api: api.key):
        versions = f"{api.oldest} to {api.newest}" if api.newest > api.oldest else f"{api.oldest}"
        parts.append(f"| {_name(api.key)} | {api.key} | {versions} | {_purpose(api.key)} |\n")
    parts.append(FEATURES_INTRODUCTION)
    parts.extend(
        f"| `{name}` | {feature.level} | {feature.meaning} |\n" for name, feature in FEATURES.items()
    )
    parts.append(NOT_SERVED_INTRODUCTION)
    parts.extend(f"| {_name(key)} | {key} | {NOT_SERVED[key]} |\n" for key in sorted(NOT_SERVED))
    return "".join(parts)


def _name(key: int) -> str:
    return "".join(word.capitalize() for word in api_name(key).split("_"))


def _purpose(key: int) -> str:
    """The first line of the API's module, which opens with its contract: `Name (key): what it does.`"""
    contract = getattr(_api, APIS[key].handler.__name__).__doc__
    title, _, purpose = contract.partition("\n")[0].partition(": ")
    assert title == f"{_name(key)} ({key})", f"{contract!r} does not open with its API and a contract"
    return _CLAIMS.sub("", purpose.rstrip(".").replace("|", "\\|"))


if __name__ == "__main__":
    print(render(), end="")  # noqa: T201  (printing it is what it is for)
