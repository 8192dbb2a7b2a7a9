"""Tasks that tell of their session."""

import os
import time
from pathlib import Path

import everbeat

app = everbeat.App()


@app.task
def told(ctx, gate=None):
    """Tells which process this is and what it knows of the session; waits for the gate, if there is one."""
    if gate is not None:
        ctx.heartbeat(done=1)
        while not Path(gate).exists():
            time.sleep(0.01)
            ctx.heartbeat()
    session = ctx.session
    if session is None:
        return {"pid": os.getpid()}
    return {"pid": os.getpid(), "key": session.key, "id": session.id, "is_new": session.is_new}


@app.task
def noted(ctx, path, seconds=0.0):
    """Leaves a line when it begins and one when it ends."""
    _note(path, f"begin {os.getpid()}")
    time.sleep(seconds)
    _note(path, f"end {os.getpid()}")
    return os.getpid()


def _note(path, line):
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(fd, f"{line}\n".encode())
    os.close(fd)
