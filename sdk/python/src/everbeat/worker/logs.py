"""Log records of tasks on their way to the server."""

import logging

from everbeat.worker import worker_pb2 as pb
from everbeat.worker.attempts import dropped
from everbeat.worker.outbox import Outbox
from everbeat.worker.outcome import clean
from everbeat.worker.perform import current

_TEXT_BYTES = 16 * 1024


class LinkHandler(logging.Handler):
    """Sends the records that are made inside a task. None waits: without room a record is dropped, and counted."""

    def __init__(self, outbox: Outbox) -> None:
        super().__init__()
        self._outbox = outbox
        self.setFormatter(logging.Formatter("%(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        attempt = current.get(None)
        if attempt is None or attempt.is_over:
            return
        try:
            text = clean(self.format(record), _TEXT_BYTES)
        except Exception:
            self.handleError(record)
            return
        if attempt.dropped_logs and self._outbox.offer(dropped(attempt.lease, attempt.dropped_logs)):
            attempt.dropped_logs = 0
        line = pb.Log(lease=attempt.lease, level=_level(record.levelno), text=text)
        if not self._outbox.offer(pb.FromWorker(log=line)):
            attempt.dropped_logs += 1


def set_up(outbox: Outbox, show_tasks: bool) -> None:
    """Has records of tasks sent to the server, and all others shown on stderr unless the app has said otherwise.

    ``show_tasks`` shows those of tasks as well. The server reads the stderr of a pool's workers: there they
    would come twice.
    """
    root = logging.getLogger()
    if not root.handlers:
        shown = logging.StreamHandler()
        shown.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        if not show_tasks:
            shown.addFilter(lambda _record: current.get(None) is None)
        root.addHandler(shown)
        if root.level == logging.WARNING:  # As it is from the start.
            root.setLevel(logging.INFO)
    root.addHandler(LinkHandler(outbox))


def _level(number: int) -> str:
    if number >= logging.ERROR:
        return "error"
    if number >= logging.WARNING:
        return "warning"
    return "info" if number >= logging.INFO else "debug"
