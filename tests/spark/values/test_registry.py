import base64
import json
import ssl

import pytest
import trustme

from ottla.spark.values.errors import RegistryError, SchemaError, UnknownSchema
from ottla.spark.values.registry import Location, Registry, pause_s
from tests.spark.values.registry_server import RegistryServer, serving


def asking(server: RegistryServer, **settings: object) -> tuple[Registry, list[float]]:
    slept: list[float] = []
    return Registry(Location.of(server.url, **settings), sleep=slept.append), slept  # type: ignore[arg-type]


def test_a_schema_by_id_is_asked_for_once(registry: RegistryServer) -> None:
    schema_id = registry.add("a-value", '"string"')
    asked, _ = asking(registry)
    assert [asked.by_id(schema_id).text for _ in range(3)] == ['"string"'] * 3
    assert registry.asked == [f"GET /schemas/ids/{schema_id}"]


def test_the_latest_version_is_asked_for_each_time(registry: RegistryServer) -> None:
    asked, _ = asking(registry)
    first = registry.add("a/b value", '"int"')
    assert asked.by_subject("a/b value").id == first
    second = registry.add("a/b value", '"long"')
    assert asked.by_subject("a/b value").id == second
    assert asked.by_subject("a/b value", 1).id == first
    asked.by_id(second)
    assert len(registry.asked) == 3, "the ids were known"


def test_references_come_innermost_first_and_each_once(registry: RegistryServer) -> None:
    registry.add("c", "C")
    registry.add("b", "B", references=[("n.C", "c", 1)])
    top = registry.add("a", "A", references=[("n.B", "b", 1), ("n.C", "c", 1)])
    asked, _ = asking(registry)
    assert asked.by_id(top).references == (("n.C", "C"), ("n.B", "B"))
    assert len(registry.asked) == 3


def test_references_in_a_circle_end(registry: RegistryServer) -> None:
    registry.add("a", "A", references=[("n.B", "b", 1)])
    registry.add("b", "B", references=[("n.A", "a", 1)])
    asked, _ = asking(registry)
    with pytest.raises(SchemaError, match="are circular"):
        asked.by_subject("a")


def test_a_version_that_is_registered_in_between_is_not_mixed_in(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(RegistryServer(gives_compiled=True)) as registry:
        first = registry.add("p", 'syntax = "proto3"; message Old {}', "PROTOBUF")
        answer = registry.answer

        def registering(method: str, target: str, body: object) -> tuple[int, object]:
            answered = answer(method, target, body)
            registry.add("p", 'syntax = "proto3"; message New {}', "PROTOBUF")
            return answered

        monkeypatch.setattr(registry, "answer", registering)
        found = Registry(Location.of(registry.url)).by_subject("p")
    assert found.id == first and b"Old" in base64.b64decode(found.text)


def test_what_the_registry_has_not_is_another_error_than_a_registry_that_is_not_there(
    registry: RegistryServer,
) -> None:
    asked, slept = asking(registry)
    with pytest.raises(UnknownSchema, match="no schema id 99: Schema not found"):
        asked.by_id(99)
    with pytest.raises(UnknownSchema, match="version latest of subject 'nope'"):
        asked.by_subject("nope")
    assert slept == [], "an answer is an answer"
    registry.prefix = "/apis/ccompat/v7"
    with pytest.raises(RegistryError, match="is not a schema registry: status 404") as caught:
        asked.by_id(99)
    assert not isinstance(caught.value, UnknownSchema)


@pytest.mark.parametrize("prefix", ["/apis/ccompat/v7", "/registry"])
def test_a_base_address_may_have_a_path(prefix: str) -> None:
    with serving(RegistryServer(prefix=prefix)) as server:
        schema_id = server.add("a", '"int"')
        for url in (server.url, f"{server.url}/"):
            assert Registry(Location.of(url)).by_subject("a").id == schema_id


def test_a_registry_that_stumbles_is_asked_again_with_growing_pauses(registry: RegistryServer) -> None:
    schema_id = registry.add("a", '"int"')
    asked, slept = asking(registry)
    registry.failing = [500, 503, 429]
    assert asked.by_id(schema_id).text == '"int"'
    assert slept == [pause_s(1), pause_s(2), pause_s(3)] and slept == sorted(slept)
    assert pause_s(50) == pause_s(60), "pauses have an end"


def test_a_registry_that_stays_down_is_told_with_what_it_said(registry: RegistryServer) -> None:
    asked, slept = asking(registry, attempts=3)
    registry.failing = [503] * 9
    with pytest.raises(RegistryError, match=r"about schema id 1, after 3 attempts; .*last .*: status 503"):
        asked.by_id(1)
    assert len(registry.asked) == 3 and len(slept) == 2


def test_the_next_address_is_tried_at_once(registry: RegistryServer, free_port: int) -> None:
    schema_id = registry.add("a", '"int"')
    slept: list[float] = []
    location = Location.of(f"http://127.0.0.1:{free_port}, {registry.url}")
    assert Registry(location, sleep=slept.append).by_id(schema_id).text == '"int"'
    assert slept == []


def test_a_user_and_a_password() -> None:
    with serving(RegistryServer(auth="ann:s3:cret")) as server:
        schema_id = server.add("a", '"int"')
        for auth in ("ann:s3:cret", ("ann", "s3:cret")):
            location = Location.of(server.url, auth=auth)
            assert Registry(location).by_id(schema_id).text == '"int"'
            assert "cret" not in repr(location)
        with pytest.raises(RegistryError, match="status 401: check auth"):
            Registry(Location.of(server.url, auth="ann:wrong")).by_id(schema_id)


def test_tls_with_an_authority_of_ones_own(tmp_path: object) -> None:
    authority = trustme.CA()
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(tls)
    file = f"{tmp_path}/ca.pem"
    authority.cert_pem.write_to_path(file)
    with serving(RegistryServer(), tls) as server:
        schema_id = server.add("a", '"int"')
        assert Registry(Location.of(server.url, ca_file=file)).by_id(schema_id).text == '"int"'
        with pytest.raises(RegistryError, match="ca_file"):
            Registry(Location.of(server.url)).by_id(schema_id)


def test_a_schema_is_registered(registry: RegistryServer) -> None:
    asked, _ = asking(registry)
    added = asked.register("new", '{"type": "object"}', "JSON")
    assert json.loads(added.text) == {"type": "object"} and added.kind == "JSON"
    assert registry.subjects["new"] == [added.id]
    assert asked.register("new", '{"type": "object"}', "JSON").id == added.id


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"registry": "localhost:8081"}, "is not an HTTP URL"),
        ({"registry": " , "}, "is empty"),
        ({"registry": "http://ann:pw@h:1"}, "to auth"),
        ({"registry": "http://h:1", "auth": "ann"}, "USER:PASSWORD"),
        ({"registry": "http://h:1", "attempts": 0}, "at least 1"),
    ],
)
def test_bad_settings_are_told(settings: dict[str, object], reason: str) -> None:
    with pytest.raises(ValueError, match=reason) as caught:
        Location.of(**settings)  # type: ignore[arg-type]
    assert "pw" not in str(caught.value)
