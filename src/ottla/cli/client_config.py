"""How the commands reach a cluster that is not open to everybody: a file of client settings, for all commands alike.

`ottla --client-config FILE …`, or OTTLA_CLIENT_CONFIG, names a file of Kafka's properties with its dotted names (`security.protocol`,
`sasl.mechanism`), as Kafka's own tools take it: a key store or trust store of type PEM, and the user and password of a login module, are
understood. The SDK's own names may stand there too, with dots or underscores. What is no setting of a client is refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from ottla.client.settings import ClientSettings

#: Kafka's names, and librdkafka's, for what has another name here.
_OTHER_NAMES: Final = {
    "ssl.truststore.location": "ssl_cafile",
    "ssl.ca.location": "ssl_cafile",
    "ssl.keystore.location": "ssl_certfile",
    "ssl.certificate.location": "ssl_certfile",
    "ssl.key.location": "ssl_keyfile",
    "ssl.key.password": "ssl_password",
    "sasl.mechanisms": "sasl_mechanism",
}
_STORE_TYPES: Final = ("ssl.truststore.type", "ssl.keystore.type")
_LOGIN: Final = re.compile(r"""\b(username|password)\s*=\s*("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|[^\s;"']+)""")

_file: str | None = None


def use_file(path: str | None) -> None:
    """Let the clients of this run take their settings from that file."""
    global _file
    _file = path


def client_settings(client_id: str) -> ClientSettings:
    """The settings that every client of a command gets: those of the file, and this client id unless it has one."""
    settings: ClientSettings = {"client_id": client_id}
    if _file is not None:
        from ottla.config.properties import parse_properties

        settings.update(settings_from(parse_properties(Path(_file).read_text(encoding="utf-8"))))
    return settings


def settings_from(properties: Mapping[str, str]) -> ClientSettings:
    """Typed settings out of properties; `SettingError` names what is wrong, and never a secret."""
    import dataclasses

    from ottla.client.errors import SettingError
    from ottla.client.settings import Client, settings_of

    types = {field.name: str(field.type) for field in dataclasses.fields(Client)}
    found: dict[str, Any] = {}
    for name, value in properties.items():
        if name == "bootstrap.servers":
            # The command's own --bootstrap says where; the file says how.
            continue
        if name in _STORE_TYPES:
            if value.upper() != "PEM":
                raise SettingError(f"{name} is {value}; of stores only PEM files can be read: convert it")
        elif name == "sasl.jaas.config":
            found |= {f"sasl_{key}": _unquoted(word) for key, word in _LOGIN.findall(value)}
        elif name == "ssl.endpoint.identification.algorithm":
            found["ssl_check_hostname"] = value.lower() == "https"
        else:
            key = _OTHER_NAMES.get(name, name.replace(".", "_"))
            found[key] = _typed(key, value, types.get(key, "str"))
    settings_of(Client, found)
    return found  # type: ignore[return-value]  # checked by the line above


def _typed(name: str, value: str, kind: str) -> Any:
    from ottla.client.errors import SettingError

    if kind == "int":
        try:
            return int(value)
        except ValueError:
            raise SettingError(f"{name} must be a whole number, not {value!r}") from None
    if kind == "bool":
        if value.lower() not in ("true", "false"):
            raise SettingError(f"{name} must be true or false, not {value!r}")
        return value.lower() == "true"
    return value


def _unquoted(word: str) -> str:
    return re.sub(r"\\(.)", r"\1", word[1:-1]) if word[0] in "\"'" else word
