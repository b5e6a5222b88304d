"""Protobuf schemas: from the registry's text, or from a descriptor set, to descriptors.

Registries return .proto source, or the compiled form (a FileDescriptorProto in base64), which needs no
compiler. Source is compiled by the protoc of the package grpcio-tools, in a separate process, so that its
errors can be reported. Each schema has its own descriptor pool, because two versions of a message have the
same name.

A value contains indexes that select a message of the file. Clients differ in whether they count the hidden
messages of map fields: those that use protoc's descriptors do, those that parse the source do not. Both are
supported.
"""

from __future__ import annotations

import base64
import importlib
import importlib.util
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool

from ottla.spark.values.errors import SchemaError
from ottla.spark.values.registry import Schema

#: The file of the schema itself; other files are its imports.
MAIN: Final = "ottla_main.proto"
_COMPILE_S_MAX: Final = 60
_GOOGLES: Final = "google/"


@dataclass(frozen=True, slots=True)
class Files:
    """Compiled files, each after its imports; the last is the schema itself.

    Plain bytes, sent to workers in the plan.
    """

    serialized: tuple[bytes, ...]

    def main(self) -> Any:
        return _file(self.serialized[-1])

    def message(self, name: str | None) -> Any:
        """The descriptor of this message, or of the first message of the last file, in a new pool."""
        pool = descriptor_pool.DescriptorPool()
        added: set[str] = set()
        files = [_file(each) for each in self.serialized]
        try:
            for each in files:
                _add(pool, each, added)
        except TypeError as error:
            raise SchemaError(f"the files of this Protobuf schema do not fit together: {error}") from None
        known = [full for each in files for full in names(each)]
        if not name:
            own = names(files[-1])
            if not own:
                raise SchemaError("this Protobuf schema has no message")
            name = own[0]
        if name not in known:
            near = [full for full in known if full.endswith(f".{name}")]
            if len(near) != 1:
                raise SchemaError(f"this Protobuf schema has no message {name!r}; it has {', '.join(known)}")
            name = near[0]
        return pool.FindMessageTypeByName(name)


def files_of(schema: Schema) -> Files:
    """Compile a schema of the registry, unless it is already compiled."""
    texts = [*schema.references, (MAIN, schema.text)]
    compiled = [_compiled(text) for _name, text in texts]
    if all(each is not None for each in compiled):
        files = []
        for (name, _text), each in zip(texts, compiled, strict=True):
            assert each is not None
            each.name = name
            files.append(each.SerializeToString())
        return Files(tuple(files))
    if any(each is not None for each in compiled):
        raise SchemaError("the registry gave some files of this Protobuf schema compiled and some as source")
    return _compile(texts)


def files_of_set(descriptor_set: bytes) -> Files:
    """The files of a FileDescriptorSet, as `protoc --include_imports --descriptor_set_out` writes it.

    The last is the schema.
    """
    read = descriptor_pb2.FileDescriptorSet()
    try:
        read.ParseFromString(descriptor_set)
    except Exception as error:
        raise SchemaError(f"not a descriptor set: {error}") from None
    if not read.file:
        raise SchemaError("this descriptor set is empty")
    return Files(tuple(each.SerializeToString() for each in read.file))


def names(file: Any) -> list[str]:
    """The full names of all messages of a file, outer before inner, without the messages of map fields."""
    found: list[str] = []

    def enter(messages: Iterable[Any], prefix: str) -> None:
        for each in messages:
            if not each.options.map_entry:
                found.append(f"{prefix}{each.name}")
                enter(each.nested_type, f"{prefix}{each.name}.")

    enter(file.message_type, f"{file.package}." if file.package else "")
    return found


def names_at(file: Any, indexes: tuple[int, ...]) -> set[str]:
    """The full names of the message at these indexes, by both ways of counting."""
    found = set()
    for counts_map_entries in (True, False):
        messages, parts = list(file.message_type), [file.package] if file.package else []
        for index in indexes:
            if not counts_map_entries:
                messages = [each for each in messages if not each.options.map_entry]
            if index >= len(messages):
                break
            parts.append(messages[index].name)
            messages = list(messages[index].nested_type)
        else:
            found.add(".".join(parts))
    return found


def indexes_of(descriptor: Any) -> tuple[int, ...]:
    """The indexes of this message in its file, in protoc's order."""
    indexes: list[int] = []
    while descriptor is not None:
        outer = descriptor.containing_type
        beside = outer.nested_types if outer is not None else descriptor.file.message_types_by_name.values()
        indexes.append([each.full_name for each in beside].index(descriptor.full_name))
        descriptor = outer
    return tuple(reversed(indexes))


def _file(serialized: bytes) -> Any:
    file = descriptor_pb2.FileDescriptorProto()
    file.ParseFromString(serialized)
    return file


def _add(pool: Any, file: Any, added: set[str]) -> None:
    if file.name in added:
        return
    added.add(file.name)
    for name in file.dependency:
        if name.startswith(_GOOGLES) and name not in added:
            _add(pool, _googles(name), added)
    pool.Add(file)


def _googles(name: str) -> Any:
    """A file of protobuf itself, or of googleapis-common-protos."""
    try:
        module = importlib.import_module(name.removesuffix(".proto").replace("/", ".") + "_pb2")
    except ImportError:
        raise SchemaError(
            f"it imports {name}, which is neither among its references nor in a Google package: register it "
            "as a reference"
        ) from None
    file = descriptor_pb2.FileDescriptorProto()
    module.DESCRIPTOR.CopyToProto(file)
    return file


def _compiled(text: str) -> Any | None:
    """The compiled file, if the text is base64 and not source."""
    try:
        return _file(base64.b64decode(text.encode("ascii"), validate=True))
    except Exception:
        # Source: it has spaces and semicolons, which base64 lacks.
        return None


def _compile(texts: list[tuple[str, str]]) -> Files:
    if importlib.util.find_spec("grpc_tools") is None:
        # Neither the schema nor its rows are bad: this ends the task in every mode.
        raise ModuleNotFoundError(
            "the registry returns this Protobuf schema as source: install grpcio-tools, which compiles it, "
            "or set descriptor_set to a compiled schema"
        )
    with tempfile.TemporaryDirectory(prefix="ottla-proto-") as folder:
        for name, text in texts:
            path = Path(folder, name)
            if not path.resolve().is_relative_to(Path(folder).resolve()):
                raise SchemaError(f"a file of this Protobuf schema has the invalid name {name!r}")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        out = Path(folder, "ottla_compiled.binpb")
        try:
            done = subprocess.run(  # noqa: S603 (our own interpreter, names that were checked)
                [
                    sys.executable,
                    "-c",
                    _PROTOC,
                    f"-I{folder}",
                    "--include_imports",
                    f"--descriptor_set_out={out}",
                    MAIN,
                ],
                capture_output=True,
                timeout=_COMPILE_S_MAX,
                check=False,
            )
        except subprocess.TimeoutExpired:
            # A busy machine does not make the rows bad.
            raise TimeoutError(
                f"this Protobuf schema was not compiled within {_COMPILE_S_MAX} s: retry when the machine "
                "is less busy, "
                "or set descriptor_set to a compiled schema"
            ) from None
        if done.returncode:
            said = (
                done.stderr.decode(errors="replace")
                .replace(f"{folder}/", "")
                .replace(MAIN, "the schema")
                .strip()
            )
            raise SchemaError(f"this Protobuf schema does not compile: {said}")
        return files_of_set(out.read_bytes())


#: protoc with the Google files of grpcio-tools. `python -m grpc_tools.protoc` would load setuptools for them.
_PROTOC: Final = """
import sys, pathlib, grpc_tools
from grpc_tools import _protoc_compiler
folder = pathlib.Path(grpc_tools.__file__).with_name("_proto")
sys.exit(_protoc_compiler.run_main([part.encode() for part in ["protoc", *sys.argv[1:], f"-I{folder}"]]))
"""
