"""Identities: minted by the caller before the first try, or derived from what they name."""

from __future__ import annotations

import hashlib
import os
import time
import uuid


def mint_uuid() -> uuid.UUID:
    """A UUID version 7: ordered by time, then random."""
    millis = time.time_ns() // 1_000_000
    random = int.from_bytes(os.urandom(10), "big")
    value = (millis & ((1 << 48) - 1)) << 80 | 0x7 << 76 | (random >> 68) << 64
    return uuid.UUID(int=value | 0b10 << 62 | random & ((1 << 62) - 1))


def mint() -> str:
    """A text that nobody else has."""
    return str(mint_uuid())


def mint_spread(partitions: int) -> str:
    """The id of an execution or a flow of its own, spread over the partitions."""
    value = mint_uuid()
    return f"{value.int % (1 << 62) % partitions:04x}-{value}"


def mint_beside(neighbour: str) -> str:
    """The id of an execution that lives where its flow or its parent lives."""
    return f"{neighbour[:4]}-{mint_uuid()}"


def digest16(*parts: bytes) -> bytes:
    """Sixteen bytes that tell these parts apart from all others."""
    return hashlib.sha256(b"".join(len(part).to_bytes(8, "big") + part for part in parts)).digest()[:16]


def derive(what: str, execution_id: str, generation: int, name: str, key: str | None, occurrence: int | None) -> bytes:
    """Sixteen bytes that an entry of a journal determines: the same in every run of one generation."""
    counted = b"count", (occurrence or 0).to_bytes(4, "big")
    space, place = counted if key is None else (b"key", key.encode())
    execution = uuid.UUID(execution_id[5:]).bytes
    return digest16(what.encode(), execution, generation.to_bytes(4, "big"), name.encode(), space, place)


def draw(execution_id: str, generation: int, name: str, key: str | None) -> float:
    """A number from 0 up to 1 that is the same in every run of one generation, and in every language."""
    first_bytes = derive("random", execution_id, generation, name, key, 0)[:8]
    # A double has 53 bits for a fraction.
    return (int.from_bytes(first_bytes, "big") >> 11) / 2**53


def child_id(execution_id: str, generation: int, name: str, key: str | None, occurrence: int | None) -> str:
    """The child of an entry: spawning it again finds it."""
    derived = derive("child", execution_id, generation, name, key, occurrence)
    return f"{execution_id[:4]}-{uuid.UUID(bytes=derived)}"
