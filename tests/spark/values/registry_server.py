"""A schema registry for tests: Confluent's REST interface, over real HTTP, in memory.

It can be given a path in front (as Apicurio's), a user and password, and a line of statuses with which it answers the next requests instead.
`asked` is the list of requests it was sent.
"""

from __future__ import annotations

import base64
import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit


class RegistryServer:
    def __init__(self, *, prefix: str = "", auth: str | None = None, gives_compiled: bool = False) -> None:
        self.prefix = prefix
        self.auth = auth
        self.gives_compiled = gives_compiled
        self.failing: list[int] = []
        self.asked: list[str] = []
        self.schemas: dict[int, dict[str, Any]] = {}
        self.subjects: dict[str, list[int]] = {}
        self.url = ""

    def add(
        self,
        subject: str,
        schema: Any,
        kind: str = "AVRO",
        references: list[tuple[str, str, int]] | None = None,
    ) -> int:
        """Register without HTTP; gives the id. References: (name, subject, version)."""
        entry: dict[str, Any] = {"schema": schema if isinstance(schema, str) else json.dumps(schema)}
        if kind != "AVRO":
            entry["schemaType"] = kind
        if references:
            entry["references"] = [
                {"name": name, "subject": other, "version": version} for name, other, version in references
            ]
        return self._register(subject, entry)

    def _register(self, subject: str, entry: dict[str, Any]) -> int:
        found = next((known for known, other in self.schemas.items() if other == entry), None)
        schema_id = found if found is not None else len(self.schemas) + 101
        self.schemas[schema_id] = entry
        versions = self.subjects.setdefault(subject, [])
        if schema_id not in versions:
            versions.append(schema_id)
        return schema_id

    def answer(self, method: str, target: str, body: Any) -> tuple[int, Any]:
        parts = urlsplit(target)
        if not parts.path.startswith(self.prefix + "/"):
            return 404, None
        path = [unquote(each) for each in parts.path.removeprefix(self.prefix).strip("/").split("/")]
        compiled = parse_qs(parts.query).get("format") == ["serialized"]
        match method, path:
            case "GET", ["schemas", "ids", number]:
                if int(number) not in self.schemas:
                    return 404, {"error_code": 40403, "message": "Schema not found"}
                return 200, self._shown(int(number), compiled)
            case "GET", ["subjects"]:
                return 200, list(self.subjects)
            case "GET", ["subjects", subject, "versions", version]:
                if subject not in self.subjects:
                    return 404, {"error_code": 40401, "message": f"Subject '{subject}' not found."}
                versions = self.subjects[subject]
                place = len(versions) if version in ("latest", "-1") else int(version)
                if not 1 <= place <= len(versions):
                    return 404, {"error_code": 40402, "message": f"Version {version} not found."}
                shown = self._shown(versions[place - 1], compiled)
                return 200, {"subject": subject, "version": place, "id": versions[place - 1], **shown}
            case "POST", ["subjects", subject, "versions"]:
                entry = {key: body[key] for key in ("schema", "schemaType", "references") if body.get(key)}
                if entry.get("schemaType") == "AVRO":
                    del entry["schemaType"]
                schema_id = self._register(subject, entry)
                versions = self.subjects[subject]
                return 200, {"id": schema_id, "version": versions.index(schema_id) + 1, **entry}
            case "POST", ["subjects", subject]:
                for place, schema_id in enumerate(self.subjects.get(subject, []), 1):
                    if self.schemas[schema_id]["schema"] == body["schema"]:
                        return 200, {
                            "subject": subject,
                            "version": place,
                            "id": schema_id,
                            **self.schemas[schema_id],
                        }
                return 404, {"error_code": 40403, "message": "Schema not found"}
            case _:
                return 404, {"error_code": 404, "message": "HTTP 404 Not Found"}

    def _shown(self, schema_id: int, compiled: bool) -> dict[str, Any]:
        entry = self.schemas[schema_id]
        if not (compiled and self.gives_compiled and entry.get("schemaType") == "PROTOBUF"):
            return entry
        from ottla.spark.values.protobuf_schema import files_of
        from ottla.spark.values.registry import Schema

        references = [
            (each["name"], self.schemas[self.subjects[each["subject"]][each["version"] - 1]]["schema"])
            for each in entry.get("references", [])
        ]
        file = files_of(Schema(schema_id, "PROTOBUF", entry["schema"], tuple(references))).serialized[-1]
        return {**entry, "schema": base64.b64encode(file).decode()}


@contextmanager
def serving(server: RegistryServer, tls: ssl.SSLContext | None = None) -> Iterator[RegistryServer]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._respond()

        def do_POST(self) -> None:
            self._respond()

        def _respond(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            server.asked.append(f"{self.command} {self.path}")
            given = self.headers.get("Authorization")
            if server.failing:
                status, answer = server.failing.pop(0), None
            elif server.auth and given != "Basic " + base64.b64encode(server.auth.encode()).decode():
                status, answer = 401, {"error_code": 401, "message": "Unauthorized"}
            else:
                status, answer = server.answer(self.command, self.path, json.loads(body) if body else None)
            text = b"<html>" if answer is None else json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: object) -> None:
            pass

    class Quiet(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_: object) -> None:
            """A client that does not trust our certificate hangs up: that is its right."""

    listener = Quiet(("127.0.0.1", 0), Handler)
    if tls is not None:
        listener.socket = tls.wrap_socket(listener.socket, server_side=True)
    scheme = "https" if tls is not None else "http"
    server.url = f"{scheme}://127.0.0.1:{listener.server_address[1]}{server.prefix}"
    thread = threading.Thread(target=listener.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server
    finally:
        listener.shutdown()
        thread.join()
        listener.server_close()
