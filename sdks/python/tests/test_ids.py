"""What derives from an entry of a journal is what the documentation says, and so what other languages derive."""

from __future__ import annotations

import re
from pathlib import Path
from uuid import UUID

from flowfabric._ids import child_id, derive, draw

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "durable.md").read_text()
EXECUTION = "00ff-0190a0a0-0000-7000-8000-000000000001"


def test_the_id_of_a_child_derives_as_the_documentation_says() -> None:
    rows = re.findall(r"^\| `child` \| (\d+) \| `([^`]+)` \| (?:`([^`]+)`)? *\| (\d*) *\| `([^`]+)` \|$", PAGE, re.M)
    assert len(rows) == 5
    for generation, name, key, occurrence, expected in rows:
        assert child_id(EXECUTION, int(generation), name, key or None, int(occurrence or 0)) == expected


def test_chance_derives_as_the_documentation_says() -> None:
    rows = re.findall(r"^\| (\d+) \| `([^`]+)` \| (?:`([^`]+)`)? *\| `([^`]+)` \| `(0\.\d+)` \|$", PAGE, re.M)
    assert len(rows) == 4
    for generation, name, key, uuid, random in rows:
        assert str(UUID(bytes=derive("uuid", EXECUTION, int(generation), name, key or None, 0))) == uuid
        assert draw(EXECUTION, int(generation), name, key or None) == float(random)
