"""Receives webhooks: each delivery becomes one execution, however often it is sent, and another delivery wakes it.

ff dev &
python webhook.py 8080
"""

from __future__ import annotations

import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from pydantic import BaseModel

import flowfabric as ff


class Order(BaseModel):
    id: str
    amount: int


class Payment(BaseModel):
    order: str
    amount: int


@ff.task("order", retries=3)
async def order(ctx: ff.Context, order: Order) -> str:
    payment = await ctx.wait_signal("payment", Payment)
    if payment.amount < order.amount:
        return f"order {order.id}: {order.amount - payment.amount} is missing"
    return f"order {order.id}: paid"


class Receiver(BaseHTTPRequestHandler):
    """`POST /orders` and `POST /payments`, each with the delivery's id in `Webhook-Id`."""

    client: ff.Client

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        delivery = self.headers["webhook-id"]
        answer: dict[str, Any]
        try:
            if self.path == "/orders":
                made = Order.model_validate(body)
                # The key of the order finds its execution again; a repeated delivery finds it, too.
                execution = self.client.submit(order, made, idempotency_key=made.id, tags={"order": made.id})
                answer = {"execution": execution.id}
            else:
                paid = Payment.model_validate(body)
                found = next(iter(self.client.list(tag=f"order={paid.order}")), None)
                answer = {"execution": found.execution_id if found else None}
                if found:
                    self.client.execution(found.execution_id).signal("payment", paid, idempotency_key=delivery)
            self.reply(200, answer)
        except ff.Conflict as error:
            # It was delivered before, and the order has ended since.
            self.reply(200, {"ignored": error.code})
        except (ValueError, ff.FlowFabricError) as error:
            self.reply(400 if isinstance(error, ValueError) else 503, {"error": str(error)})

    def reply(self, status: int, answer: dict[str, Any]) -> None:
        data = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def main() -> None:
    Receiver.client = ff.Client()
    receiver = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Receiver)
    threading.Thread(target=receiver.serve_forever, daemon=True).start()
    print(f"webhooks at http://127.0.0.1:{receiver.server_port}", flush=True)
    ff.Worker([order]).run()


if __name__ == "__main__":
    main()
