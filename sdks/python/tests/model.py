"""A model for tests: it speaks the chat protocol, says what it was asked, and counts."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Model:
    """What was asked, and how often."""

    def __init__(self) -> None:
        self.url = ""
        self.asked: Counter[str] = Counter()


@contextmanager
def mock_model() -> Iterator[Model]:
    """Serves while the block runs."""
    model = Model()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            prompt = body["messages"][-1]["content"]
            model.asked[prompt] += 1
            message: dict[str, object] = {"role": "assistant", "content": f"An answer to: {prompt}"}
            if body.get("tools") and body["messages"][-1]["role"] == "user":
                function = {"name": body["tools"][0]["function"]["name"], "arguments": '{"word": "tide"}'}
                call = {"id": "call-1", "type": "function", "function": function}
                message = {"role": "assistant", "content": None, "tool_calls": [call]}
            answer = {
                "id": "1", "object": "chat.completion", "created": 0, "model": "small",
                "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
                "usage": {"prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12},
            }  # fmt: skip
            data = json.dumps(answer).encode()
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    model.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield model
    finally:
        server.shutdown()
        server.server_close()
