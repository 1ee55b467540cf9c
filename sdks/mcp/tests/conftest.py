"""One server for a test, with tokens on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from .support import Server


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path)
    server.start()
    yield server
    server.kill()
