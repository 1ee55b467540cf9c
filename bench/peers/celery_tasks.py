"""The tasks of the Celery worker."""

import os
import time

from celery import Celery

address = f"redis://127.0.0.1:{os.environ['PEER_PORT']}/0"
app = Celery("peer", broker=address, backend=address)


@app.task
def empty():
    pass


@app.task
def clock():
    """The clock is the same for all processes of a machine."""
    return time.monotonic()
