"""One server on SQLite for all tests that do not stop theirs, and one on Valkey for what must hold on both."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from flowfabric.testing import Server

from .support import store

#: Modules whose tests run on both stores: journals, waits, children, forks, what is reserved, and exchanges.
ON_BOTH_STORES = {"test_exchange", "test_governance", "test_journal", "test_sequences"}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "server" in metafunc.fixturenames:
        on_both = metafunc.module.__name__.rpartition(".")[2] in ON_BOTH_STORES
        metafunc.parametrize("server", ["sqlite", "valkey"] if on_both else ["sqlite"], indirect=True, scope="session")


@pytest.fixture(scope="session")
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder: Path = tmp_path_factory.mktemp("server")
    with store(request.param, folder) as url, Server(url, options=["--log-level", "error"]) as server:
        yield server
