"""Something between a worker and its server, which can lose answers and say other things."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx

#: What becomes of a call: nothing is `None`; `"lose"` carries it out and cuts the connection; a status answers it here.
Fate = None | str | int


class Proxy:
    """Carries calls to a server. `fate` is asked about each, by the last word of its path and its body."""

    def __init__(self, url: str) -> None:
        self.url = ""
        self.target = url
        self.fate: Callable[[str, dict[str, Any]], Fate] = lambda _, __: None
        #: Called in the proxy's thread between an answer of the server and its way back.
        self.hold: Callable[[str, dict[str, Any]], object] = lambda _, __: None
        self.calls: Counter[str] = Counter()
        self.bodies: list[tuple[str, dict[str, Any]]] = []


@contextmanager
def proxy(target: str) -> Iterator[Proxy]:
    its = Proxy(target)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def carry(self) -> None:
            content = self.rfile.read(int(self.headers.get("content-length", 0)))
            name = self.path.split("?")[0].rsplit("/", 1)[-1]
            body = json.loads(content or b"{}")
            its.calls[name] += 1
            its.bodies.append((name, body))
            fate = its.fate(name, body)
            if isinstance(fate, int):
                code = "route_not_found" if fate == 404 else "unauthenticated"
                problem = {"code": code, "title": "not_found", "status": fate, "detail": "says the proxy"}
                self.answer(fate, json.dumps(problem).encode())
                return
            headers = {name: value for name, value in self.headers.items() if name.lower() in {"authorization"}}
            headers["content-type"] = "application/json"
            try:
                carried = client.request(self.command, its.target + self.path, content=content, headers=headers)
            except httpx.TransportError:
                fate = "lose"
            if fate == "lose":
                self.close_connection = True
                return
            its.hold(name, body)
            self.answer(carried.status_code, carried.content)

        def answer(self, status: int, content: bytes) -> None:
            self.send_response(status)
            self.send_header("content-length", str(len(content)))
            # The caller may be gone.
            with suppress(ConnectionError):
                self.end_headers()
                self.wfile.write(content)

        do_GET = do_POST = do_PUT = do_DELETE = carry

        def log_message(self, *_: object) -> None:
            return

    with httpx.Client(trust_env=False, timeout=60) as client, ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        its.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield its
        finally:
            server.shutdown()
