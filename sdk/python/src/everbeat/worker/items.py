"""Streamed items that the server has not stored yet."""

from collections import deque
from typing import Deque, Iterator

from everbeat.worker import worker_pb2 as pb

# So much of one attempt is kept for a connection that may break; then its generator is held up. The server writes a few
# times a second: with less, a stream of small items would wait for it.
MOST_KEPT = 4096
MOST_KEPT_BYTES = 8 * 1024 * 1024


class Items:
    """The items of one attempt that are not answered, oldest first."""

    def __init__(self) -> None:
        self._kept: Deque[pb.FromWorker] = deque()
        self._bytes = 0

    def __iter__(self) -> Iterator[pb.FromWorker]:
        return iter(self._kept)

    def keep(self, message: pb.FromWorker) -> None:
        self._kept.append(message)
        self._bytes += message.ByteSize()

    def answered(self, sequence: int) -> None:
        """The server has all items up to this one."""
        while self._kept and self._kept[0].output.sequence <= sequence:
            self._bytes -= self._kept.popleft().ByteSize()

    def are_full(self) -> bool:
        return len(self._kept) >= MOST_KEPT or self._bytes >= MOST_KEPT_BYTES
