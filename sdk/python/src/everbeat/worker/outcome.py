"""The endings of an attempt as messages."""

import traceback
from typing import Any

from everbeat.errors import Permanent
from everbeat.values import NotJson, encode
from everbeat.worker import worker_pb2 as pb

_MESSAGE_BYTES = 4 * 1024
_DETAIL_BYTES = 16 * 1024


class TooLarge(Permanent):
    """A result or an item that the server would not take."""


def result(value: Any, limit: int) -> pb.Ended:
    """The ending with a result; a failure if the result cannot be sent."""
    try:
        return pb.Ended(result=text_of(value, "the result", limit))
    except (NotJson, TooLarge) as error:
        return pb.Ended(failure=pb.Failure(message=clean(str(error), _MESSAGE_BYTES), permanent=True))


def failure(error: BaseException) -> pb.Ended:
    """The ending with an exception of the user's code."""
    text = str(error)
    message = f"{type(error).__name__}: {text}" if text else type(error).__name__
    permanent = isinstance(error, (Permanent, NotJson))
    return pb.Ended(
        failure=pb.Failure(
            message=clean(message, _MESSAGE_BYTES),
            permanent=permanent,
            detail=clean_end(_traceback(error), _DETAIL_BYTES),
        )
    )


def unperformable(message: str) -> pb.Ended:
    """The ending of work that this worker cannot even begin, and never will."""
    return pb.Ended(failure=pb.Failure(message=clean(message, _MESSAGE_BYTES), permanent=True))


def stopped() -> pb.Ended:
    """The ending of an attempt that was told to stop, and did."""
    return pb.Ended(stopped=pb.Stopped())


def text_of(value: Any, what: str, limit: int) -> str:
    """The JSON text of a value that the server will take."""
    text = encode(value, what)
    size = len(text.encode("utf-8"))
    if limit and size > limit:
        raise TooLarge(f"{what} has {size} bytes; the server takes {limit}")
    return text


def clean(text: str, most_bytes: int) -> str:
    """The beginning of a text, in UTF-8."""
    return _utf8(text)[:most_bytes].decode("utf-8", "ignore")


def clean_end(text: str, most_bytes: int) -> str:
    """The end of a text, in UTF-8: the last lines of a traceback say the most."""
    return _utf8(text)[-most_bytes:].decode("utf-8", "ignore")


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", "backslashreplace")


def _traceback(error: BaseException) -> str:
    """The traceback without the frames of this package that stand above the user's."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_globals.get("__name__", "").startswith("everbeat.worker."):
        frames = frames.tb_next
    return "".join(traceback.format_exception(type(error), error, frames or error.__traceback__))
