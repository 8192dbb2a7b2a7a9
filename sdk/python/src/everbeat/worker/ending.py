"""Ways for the process to say something and to end that wait for nobody."""

import os
import select
import sys
import time
from typing import NoReturn

# A server that was stopped does not empty the pipe behind stderr. The process must end all the same.
_PATIENCE_MS = 200


def say(line: str) -> None:
    """Writes a line to stderr, past all buffers and locks of Python."""
    try:
        ready = select.poll()
        ready.register(2, select.POLLOUT)
        if ready.poll(_PATIENCE_MS):
            os.write(2, f"{line}\n".encode("utf-8", "backslashreplace"))
    except OSError:
        pass  # Nobody reads it any more.


def emergency(reason: str) -> NoReturn:
    """Ends the process at once, whatever its other threads do."""
    say(f"EMERGENCY_SHUTDOWN:{reason}:{int(time.time())}")
    os._exit(1)


def leave(code: int) -> NoReturn:
    """Ends the process without waiting for threads of the user's code."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):
            pass
    os._exit(code)
