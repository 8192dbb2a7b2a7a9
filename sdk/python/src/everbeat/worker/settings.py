"""What the command line and the environment say."""

import argparse
import os
from dataclasses import dataclass, field
from typing import List, Mapping, MutableMapping, Optional, Tuple
from urllib.parse import urlsplit

from everbeat._version import __version__
from everbeat.worker.target import Target

_EPILOG = """\
A worker that a server's pool started finds its server through the environment. Any other says where it is:

  python -m everbeat.worker tasks:app --connect localhost:7118 --token-file token
"""


@dataclass(frozen=True)
class Settings:
    app: str
    target: Target
    # The secret of a pool's worker, or the token of a remote one.
    secret: str = field(repr=False)
    pool: str
    slots: int
    queues: Tuple[str, ...]
    life_fd: Optional[int]
    dump_path: Optional[str]
    reload: bool
    exit_on_loss: bool

    @property
    def is_remote(self) -> bool:
        """No guardian looks after a worker of no pool: it has to go on by itself."""
        return self.target.socket_path is None


def read(arguments: List[str], environ: MutableMapping[str, str]) -> Settings:
    """The settings of this process. Secrets are taken out of the environment, so that no child inherits them."""
    parser = _parser()
    given = parser.parse_args(arguments)
    socket_path = environ.get("EVERBEAT_WORKER_SOCKET")
    url = given.connect or (environ.get("EVERBEAT_WORKER_URL") if not socket_path else None)
    try:
        pool_secret = _take_secret(environ)
        if url:
            target = _target(url, given.tls_ca)
            secret = _token(given.token_file, environ)
        elif socket_path:
            target, secret = Target(socket_path=socket_path), pool_secret
        else:
            parser.error("which server? Give --connect HOST:PORT or set EVERBEAT_WORKER_URL")
        slots = given.slots if given.slots is not None else int(environ.get("EVERBEAT_SLOTS") or 1)
        life_fd = _descriptor(environ, "EVERBEAT_WORKER_LIFE_FD")
        if life_fd is not None:
            # Nothing that the worker starts may keep the descriptor.
            os.set_inheritable(life_fd, False)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    if slots < 1:
        parser.error(f"--slots {slots}: a worker performs at least one attempt at once")
    return Settings(
        app=given.app,
        target=target,
        secret=secret,
        pool="" if url else environ.get("EVERBEAT_POOL", ""),
        slots=slots,
        queues=tuple(name.strip() for name in (given.queues or "").split(",") if name.strip()),
        life_fd=life_fd,
        dump_path=environ.get("EVERBEAT_WORKER_DUMP_PATH"),
        reload=given.reload,
        exit_on_loss=given.exit_on_loss,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m everbeat.worker",
        description="Performs the tasks of an app for an Everbeat server.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("app", metavar="MODULE:APP", help="the app, as tasks:app or path/to/tasks.py:app")
    parser.add_argument("--connect", metavar="HOST:PORT", help="the server; https://HOST:PORT for TLS")
    parser.add_argument("--token-file", metavar="FILE", help="holds the token (or set EVERBEAT_TOKEN)")
    parser.add_argument("--tls-ca", metavar="FILE", help="certificates to trust; implies TLS")
    parser.add_argument("--queues", metavar="A,B", help="take work from these queues only")
    parser.add_argument("--slots", metavar="N", type=int, help="attempts at once (1)")
    parser.add_argument("--reload", action="store_true", help="start anew when source files change")
    parser.add_argument(
        "--exit-on-loss",
        action="store_true",
        help="exit with 1 when the server is lost, instead of waiting for it",
    )
    parser.add_argument("--version", action="version", version=f"everbeat {__version__}")
    return parser


def _target(url: str, tls_ca: Optional[str]) -> Target:
    parts = urlsplit(url if "://" in url else f"//{url}")
    if parts.scheme not in ("", "http", "https") or not parts.hostname or parts.port is None:
        raise ValueError(f"{url!r} is not an address: write HOST:PORT, http://HOST:PORT or https://HOST:PORT")
    if parts.scheme == "http" and tls_ca:
        raise ValueError(f"{url!r} is not encrypted, so --tls-ca has no use: write https://")
    trusted = None
    if tls_ca:
        with open(tls_ca, "rb") as file:
            trusted = file.read()
    return Target(address=parts.netloc, tls=parts.scheme == "https" or bool(tls_ca), tls_ca=trusted)


def _token(path: Optional[str], environ: Mapping[str, str]) -> str:
    if path is None:
        return environ.get("EVERBEAT_TOKEN", "").strip()
    with open(path, encoding="utf-8") as file:
        return file.read().strip()


def _take_secret(environ: MutableMapping[str, str]) -> str:
    """The secret of a pool's worker: from a descriptor that is read to its end, or from the environment."""
    in_environment = environ.pop("EVERBEAT_WORKER_SECRET", "")
    fd = _descriptor(environ, "EVERBEAT_WORKER_SECRET_FD")
    environ.pop("EVERBEAT_WORKER_SECRET_FD", None)
    if fd is None:
        return in_environment
    with open(fd, "rb") as pipe:
        return pipe.read().decode("utf-8").strip()


def _descriptor(environ: Mapping[str, str], name: str) -> Optional[int]:
    text = environ.get(name)
    if not text:
        return None
    if not text.isdigit():
        raise ValueError(f"{name}={text!r} is not the number of a descriptor")
    return int(text)
