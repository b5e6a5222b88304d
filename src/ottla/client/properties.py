"""Client settings from Kafka properties: dotted names and text values, as in property files and options.

PEM key stores and trust stores, and user and password of a JAAS login module, work as in Kafka's own tools.
The SDK's own names work too, with dots or underscores. Other names are refused.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any, Final

from ottla.client.errors import SettingError
from ottla.client.settings import ClientConfig, settings_of

#: Names of Kafka and librdkafka that are different here.
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


def settings_from(properties: Mapping[str, str], kind: type[ClientConfig] = ClientConfig) -> dict[str, Any]:
    """Typed settings from properties, without `bootstrap.servers`. A `SettingError` quotes no secret."""
    types = {field.name: str(field.type) for field in dataclasses.fields(kind)}
    found: dict[str, Any] = {}
    for name, value in properties.items():
        if name == "bootstrap.servers":
            continue
        if name in _STORE_TYPES:
            if value.upper() != "PEM":
                raise SettingError(f"{name} is {value}: only PEM stores are supported; convert it")
        elif name == "sasl.jaas.config":
            found |= {f"sasl_{key}": _unquoted(word) for key, word in _LOGIN.findall(value)}
        elif name == "ssl.endpoint.identification.algorithm":
            found["ssl_check_hostname"] = value.lower() == "https"
        else:
            key = _OTHER_NAMES.get(name, name.replace(".", "_"))
            found[key] = _typed(key, value, types.get(key, "str"))
    settings_of(kind, found)
    return found


def _typed(name: str, value: str, kind: str) -> Any:
    if kind == "int":
        try:
            return int(value)
        except ValueError:
            raise SettingError(f"{name} must be a whole number, not {value!r}") from None
    if kind.startswith("bool"):
        if value.lower() not in ("true", "false"):
            raise SettingError(f"{name} must be true or false, not {value!r}")
        return value.lower() == "true"
    return value


def _unquoted(word: str) -> str:
    return re.sub(r"\\(.)", r"\1", word[1:-1]) if word[0] in "\"'" else word
