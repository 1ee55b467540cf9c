"""One server on SQLite for all tests that do not stop theirs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from flowfabric.testing import Server


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder: Path = tmp_path_factory.mktemp("server")
    with Server(f"sqlite://{folder}/flowfabric.db", options=["--log-level", "error"]) as server:
        yield server
