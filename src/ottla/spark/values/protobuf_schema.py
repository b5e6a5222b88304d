"""Protobuf schemas: from a registry's text, or a descriptor set of one's own, to descriptors.

Registries give .proto source, or the compiled form (a FileDescriptorProto in base64), which needs no compiler. Source is compiled by the protoc that
the package grpcio-tools brings, in a process of its own, so that what it says about a mistake can be told. All descriptors of a schema live
in a pool of their own: two versions of a message have the same name.

Which message of a file a value is, is written as indexes into its messages. Clients differ in whether the hidden messages of map fields count:
those that ask protoc's descriptors count them, those that read the source do not. Both are understood.
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

#: The file of the schema itself, among those that it imports.
MAIN: Final = "ottla_main.proto"
_COMPILE_S_MAX: Final = 60
_GOOGLES: Final = "google/"


@dataclass(frozen=True, slots=True)
class Files:
    """Compiled files, each behind those that it imports; the last is the schema itself. Plain bytes: they go to workers with the plan."""

    serialized: tuple[bytes, ...]

    def main(self) -> Any:
        return _file(self.serialized[-1])

    def message(self, name: str | None) -> Any:
        """The descriptor of the message of this full name, or the last file's first; in a pool of its own."""
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
    """Compile a schema of the registry, if it is not compiled already."""
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
    """The files of a FileDescriptorSet, as `protoc --include_imports --descriptor_set_out` writes it; the last one is the schema."""
    read = descriptor_pb2.FileDescriptorSet()
    try:
        read.ParseFromString(descriptor_set)
    except Exception as error:
        raise SchemaError(f"this is no descriptor set: {error}") from None
    if not read.file:
        raise SchemaError("this descriptor set is empty")
    return Files(tuple(each.SerializeToString() for each in read.file))


def names(file: Any) -> list[str]:
    """The full names of all messages of a file, outer before inner, without those of map fields."""
    found: list[str] = []

    def enter(messages: Iterable[Any], prefix: str) -> None:
        for each in messages:
            if not each.options.map_entry:
                found.append(f"{prefix}{each.name}")
                enter(each.nested_type, f"{prefix}{each.name}.")

    enter(file.message_type, f"{file.package}." if file.package else "")
    return found


def names_at(file: Any, indexes: tuple[int, ...]) -> set[str]:
    """The full names of the message at these indexes, by either way to count."""
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
    """Where in its file this message is, by protoc's own order."""
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
    """One of the files that come with protobuf itself, or with googleapis-common-protos."""
    try:
        module = importlib.import_module(name.removesuffix(".proto").replace("/", ".") + "_pb2")
    except ImportError:
        raise SchemaError(
            f"it imports {name}, which is neither among its references nor in a package of Google's"
        ) from None
    file = descriptor_pb2.FileDescriptorProto()
    module.DESCRIPTOR.CopyToProto(file)
    return file


def _compiled(text: str) -> Any | None:
    """The file, where the text is not source but base64."""
    try:
        return _file(base64.b64decode(text.encode("ascii"), validate=True))
    except Exception:
        # Source: it has spaces and semicolons, which base64 has not.
        return None


def _compile(texts: list[tuple[str, str]]) -> Files:
    if importlib.util.find_spec("grpc_tools") is None:
        # Not a fault of the schema, nor of the rows written with it: it ends the task in every mode.
        raise ModuleNotFoundError(
            "the registry gives this Protobuf schema as source: install grpcio-tools, which compiles it, "
            "or give a compiled one as descriptor_set"
        )
    with tempfile.TemporaryDirectory(prefix="ottla-proto-") as folder:
        for name, text in texts:
            path = Path(folder, name)
            if not path.resolve().is_relative_to(Path(folder).resolve()):
                raise SchemaError(f"a file of this Protobuf schema has the name {name!r}")
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
            # A machine that is busy is no row's fault either.
            raise TimeoutError(
                f"this Protobuf schema was not compiled within {_COMPILE_S_MAX} s: the machine may be busy; "
                "give a compiled one as descriptor_set"
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


#: protoc with the files of Google's that grpcio-tools brings; `python -m grpc_tools.protoc` would load setuptools for that.
_PROTOC: Final = """
import sys, pathlib, grpc_tools
from grpc_tools import _protoc_compiler
folder = pathlib.Path(grpc_tools.__file__).with_name("_proto")
sys.exit(_protoc_compiler.run_main([part.encode() for part in ["protoc", *sys.argv[1:], f"-I{folder}"]]))
"""
