"""Values to bytes and back: JSON through pydantic, as the annotation says; `bytes` stay bytes."""

from __future__ import annotations

import base64
import inspect
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Generic, TypeVar, get_type_hints

from pydantic import TypeAdapter
from pydantic_core import to_jsonable_python

from . import wire

T = TypeVar("T")


class Codec(Generic[T]):
    """Writes and reads values of one type."""

    def __init__(self, annotation: Any) -> None:
        self._raw = annotation is bytes
        self._adapter: TypeAdapter[T] = TypeAdapter(Any if annotation is None else annotation)

    def encode(self, field: str, value: Any) -> dict[str, Any]:
        """The arguments of a call that carry a value in this field."""
        if isinstance(value, bytes | bytearray):
            return {f"{field}_base64": base64.b64encode(value).decode(), "content_type": "application/octet-stream"}
        return {field: self._adapter.dump_python(value, mode="json", warnings=False)}

    def decode(self, content: wire.Content | None) -> T:
        """The value that some bytes hold. No bytes are null."""
        data = base64.b64decode(content.payload_base64) if content else b""
        if self._raw:
            return data  # type: ignore[return-value]
        return self._adapter.validate_json(data or b"null")

    def same(self, value: Any) -> T:
        """The value as a later run reads it, so that the run that made it sees nothing else."""
        if isinstance(value, bytes | bytearray):
            return bytes(value)  # type: ignore[return-value]
        return self._adapter.validate_json(self._adapter.dump_json(value, warnings=False))


@lru_cache(maxsize=1024)
def _cached(annotation: Any) -> Codec[Any]:
    return Codec(annotation)


def codec(annotation: Any) -> Codec[Any]:
    """The codec of an annotation; made once where the annotation can be remembered."""
    try:
        return _cached(annotation)
    except TypeError:
        return Codec(annotation)


def returned_type(function: Callable[..., Any]) -> Any:
    """What a function says it returns; anything where it says nothing."""
    try:
        return get_type_hints(inspect.unwrap(function)).get("return", Any)
    except Exception:  # A name that only the type checker knows, or a callable without hints.
        return Any


def plain(value: Any) -> Any:
    """Anything as what JSON holds."""
    return to_jsonable_python(value)
