"""HTTP client for schema registries with Confluent's API, built on the standard library.

`Location` is the address and credentials: plain data, sent to workers with the plan. `Registry` sends the
requests: from the driver when a query is planned, and from workers for each new schema id. A schema id never
changes its meaning, so schemas are cached for the lifetime of the process. URLs may have a path, as
Apicurio's `/apis/ccompat/v7`. After a failure (no connection, 429, 5xx) the next URL is tried, in rotation,
with exponential backoff. Other errors are final.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import ssl
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote, urlsplit

from ottla.spark.values.errors import RegistryError, SchemaError, UnknownSchema

AVRO: Final = "AVRO"
JSON: Final = "JSON"
PROTOBUF: Final = "PROTOBUF"
#: The id of a schema that did not come from a registry.
NO_ID: Final = -1
KINDS: Final = (AVRO, PROTOBUF, JSON)

_CONTENT: Final = "application/vnd.schemaregistry.v1+json"
_ANSWER_BYTES_MAX: Final = 64 << 20
_PAUSE_S: Final = 0.1
_PAUSE_S_MAX: Final = 5.0


@dataclass(frozen=True, slots=True)
class Location:
    """Address and credentials of a schema registry.

    `attempts` is the number of requests over all URLs together.
    """

    urls: tuple[str, ...]
    auth: tuple[str, str] | None = field(default=None, repr=False)
    ca_file: str | None = None
    timeout_s: float = 10.0
    attempts: int = 6

    @classmethod
    def of(
        cls,
        registry: str | Sequence[str],
        *,
        auth: str | tuple[str, str] | None = None,
        ca_file: str | None = None,
        timeout_s: float = 10.0,
        attempts: int = 6,
    ) -> Location:
        """Create a location from user input.

        Args:
            registry: One URL, several, or several separated by commas.
            auth: User and password, as a pair or USER:PASSWORD.
            ca_file: The CA certificate of the registry.
            timeout_s: The timeout of one request.
            attempts: The number of requests, over all URLs, before the registry counts as unreachable.

        Returns:
            The location, for `ValueReader` and `ValueWriter`.

        Raises:
            ValueError: An argument is invalid.

        Example:
            >>> Location.of("https://registry:8081", auth="user:password", ca_file="ca.pem")
        """
        texts = registry.split(",") if isinstance(registry, str) else registry
        urls = tuple(text.strip().rstrip("/") for text in texts if text.strip())
        if not urls:
            raise ValueError("registry: is empty; write a URL, as in http://127.0.0.1:8081")
        for url in urls:
            parts = urlsplit(url)
            if parts.scheme not in ("http", "https") or not parts.hostname:
                raise ValueError(
                    f"registry: {_shown(url)!r} is not an HTTP URL; write one, as in http://127.0.0.1:8081"
                )
            if parts.username is not None:
                raise ValueError(f"registry: move user and password from {_shown(url)!r} to auth")
        if isinstance(auth, str):
            user, colon, password = auth.partition(":")
            if not colon:
                raise ValueError("auth: has no colon; write USER:PASSWORD")
            auth = (user, password)
        if timeout_s <= 0 or attempts < 1:
            raise ValueError(f"timeout_s {timeout_s} must be above 0, and attempts {attempts} at least 1")
        return cls(urls, auth, ca_file, timeout_s, attempts)


@dataclass(frozen=True, slots=True)
class Schema:
    """A schema of the registry with its references, innermost first: (name, text)."""

    id: int
    kind: str
    text: str
    references: tuple[tuple[str, str], ...] = ()


def pause_s(attempt: int) -> float:
    """The backoff after this number of failed attempts."""
    return min(_PAUSE_S_MAX, _PAUSE_S * float(1 << (attempt - 1)))


class Registry:
    """A registry client. Schemas are cached by id. The latest version of a subject is always requested."""

    def __init__(self, location: Location, *, sleep: Callable[[float], None] = time.sleep) -> None:
        self._location = location
        self._sleep = sleep
        self._schemas: dict[int, Schema] = {}
        self._tls = ssl.create_default_context(cafile=location.ca_file) if location.ca_file else None

    def by_id(self, schema_id: int) -> Schema:
        found = self._schemas.get(schema_id)
        if found is None:
            answer = self._ask("GET", f"/schemas/ids/{schema_id}", f"schema id {schema_id}")
            found = self._schemas[schema_id] = self._schema(
                answer, schema_id, f"/schemas/ids/{schema_id}?", f"schema id {schema_id}"
            )
        return found

    def by_subject(self, subject: str, version: int | str = "latest") -> Schema:
        path = f"/subjects/{quote(subject, safe='')}/versions/{quote(str(version), safe='')}"
        what = f"version {version} of subject {subject!r}"
        answer = self._ask("GET", path, what)
        schema_id = answer.get("id")
        if not isinstance(schema_id, int):
            raise RegistryError(f"the registry's answer about {what} has no id")
        if schema_id not in self._schemas:
            # References are requested by id: the latest version may have changed. In a context, an id needs a
            # subject.
            path = f"/schemas/ids/{schema_id}?subject={quote(subject, safe='')}&"
            self._schemas[schema_id] = self._schema(answer, schema_id, path, what)
        return self._schemas[schema_id]

    def register(self, subject: str, text: str, kind: str) -> Schema:
        """Register a schema under a subject, or find it there. The registry checks its compatibility."""
        body: dict[str, Any] = {"schema": text}
        if kind != AVRO:
            body["schemaType"] = kind
        path = f"/subjects/{quote(subject, safe='')}/versions"
        answer = self._ask("POST", path, f"a new schema of subject {subject!r}", body)
        schema_id = answer.get("id")
        if not isinstance(schema_id, int):
            raise RegistryError(f"the registry's answer about a new schema of subject {subject!r} has no id")
        return self.by_id(schema_id)

    def _schema(self, answer: dict[str, Any], schema_id: int, path: str, what: str) -> Schema:
        kind = answer.get("schemaType") or AVRO
        if kind not in KINDS:
            raise SchemaError(f"{what} is of type {kind!r}; known are {', '.join(KINDS)}")
        references: dict[str, str] = {}
        self._gather(answer, kind, references, (what,))
        return Schema(schema_id, kind, self._text(answer, kind, path, what), tuple(references.items()))

    def _gather(
        self, answer: dict[str, Any], kind: str, into: dict[str, str], trail: tuple[str, ...]
    ) -> None:
        """Collect all references of an answer recursively, innermost first."""
        for reference in answer.get("references") or ():
            name, subject, version = (reference.get(part) for part in ("name", "subject", "version"))
            if name in into:
                continue
            path = f"/subjects/{quote(str(subject), safe='')}/versions/{version}"
            what = f"version {version} of subject {subject!r}, which {trail[-1]} refers to"
            if what in trail or len(trail) > 50:
                raise SchemaError(f"the references of {trail[0]} are circular: correct them in the registry")
            inner = self._ask("GET", path, what)
            self._gather(inner, kind, into, (*trail, what))
            into[name] = self._text(inner, kind, f"{path}?", what)

    def _text(self, answer: dict[str, Any], kind: str, path: str, what: str) -> str:
        """The schema text. For Protobuf the compiled form is preferred, which needs no compiler."""
        text = answer.get("schema")
        if kind == PROTOBUF:
            # A registry without that parameter returns the source.
            with contextlib.suppress(RegistryError):
                text = self._ask("GET", f"{path}format=serialized", what).get("schema") or text
        if not isinstance(text, str):
            raise RegistryError(f"the registry's answer about {what} has no schema")
        return text

    def _ask(self, method: str, path: str, what: str, body: object = None) -> dict[str, Any]:
        urls = self._location.urls
        trouble = ""
        for attempt in range(self._location.attempts):
            # The first round through the URLs has no pause: another URL may work.
            if attempt >= len(urls):
                self._sleep(pause_s(attempt - len(urls) + 1))
            url = urls[attempt % len(urls)]
            try:
                status, answer = self._request(url, method, path, body)
            except ssl.SSLCertVerificationError as error:
                raise RegistryError(
                    f"the certificate of the registry at {url} is not trusted ({error.verify_message}): "
                    "set ca_file to the certificate of its CA"
                ) from None
            except (OSError, http.client.HTTPException) as error:
                trouble = f"{url}: {str(error) or type(error).__name__}"
                continue
            if status == 429 or status >= 500:
                trouble = f"{url}: status {status}"
                continue
            return _read(status, answer, url, what)
        raise RegistryError(
            f"the registry does not answer about {what}, after {self._location.attempts} attempts; check "
            "the URL and the "
            f"registry; last {trouble}"
        )

    def _request(self, url: str, method: str, path: str, body: object) -> tuple[int, bytes]:
        parts = urlsplit(url)
        assert parts.hostname is not None
        timeout_s = self._location.timeout_s
        connection = (
            http.client.HTTPSConnection(parts.hostname, parts.port, timeout=timeout_s, context=self._tls)
            if parts.scheme == "https"
            else http.client.HTTPConnection(parts.hostname, parts.port, timeout=timeout_s)
        )
        headers = {"Accept": f"{_CONTENT}, application/json"}
        if self._location.auth is not None:
            pair = ":".join(self._location.auth).encode()
            headers["Authorization"] = f"Basic {base64.b64encode(pair).decode()}"
        if body is not None:
            headers["Content-Type"] = _CONTENT
        try:
            text = None if body is None else json.dumps(body)
            connection.request(method, parts.path + path, body=text, headers=headers)
            answer = connection.getresponse()
            return answer.status, answer.read(_ANSWER_BYTES_MAX)
        finally:
            connection.close()


def _read(status: int, answer: bytes, url: str, what: str) -> dict[str, Any]:
    try:
        read = json.loads(answer)
    except ValueError:
        read = None
    said = read.get("message") if isinstance(read, dict) else None
    if status == 404:
        # A 404 without the registry's JSON body comes from another server or path.
        if said is None:
            raise RegistryError(
                f"{url} is not a schema registry: status 404 for {what}; check the URL's path"
            )
        raise UnknownSchema(f"the registry at {url} has no {what}: {said}")
    if status in (401, 403):
        raise RegistryError(f"the registry at {url} refuses {what} with status {status}: check auth")
    if status != 200:
        raise RegistryError(
            f"the registry at {url} refuses {what} with status {status}: {said or 'no reason given'}"
        )
    if not isinstance(read, dict):
        raise RegistryError(
            f"{url} is not a schema registry: its answer about {what} is not JSON; check the URL"
        )
    return read


def _shown(url: str) -> str:
    """A URL without its password, for messages."""
    before, at_sign, after = url.rpartition("@")
    return f"{before.split('//')[0]}//…@{after}" if at_sign else url
