"""The task of Celery's workers. `PEER_LATE` and `PEER_RESULTS` say which promises are wanted."""

import os

from celery import Celery

_url = os.environ["PEER_REDIS"]
_late, _results = os.environ.get("PEER_LATE") == "1", os.environ.get("PEER_RESULTS") == "1"

app = Celery("peer", broker=f"{_url}/0", backend=f"{_url}/1" if _results else None)
# `worker_prefetch_multiplier` stays at its default, 4.
app.conf.update(
    task_acks_late=_late,
    task_ignore_result=not _results,
    broker_connection_retry_on_startup=True,
    worker_hijack_root_logger=False,
)


@app.task
def nothing():
    return None
