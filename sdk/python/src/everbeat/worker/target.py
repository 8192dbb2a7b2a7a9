"""Where the server of a worker is, and the channel to it."""

import errno
import socket
from dataclasses import dataclass
from typing import Optional

import grpc

_OPTIONS = [
    # The welcome says how large messages may be.
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    # Each attempt to connect is one of its own: the link has a backoff, and must not inherit another's.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_retries", 0),
]

# A peer beyond a network may vanish without a word, also when it sends no pings.
_KEEPALIVE = [("grpc.keepalive_time_ms", 20_000), ("grpc.keepalive_timeout_ms", 10_000)]

# Otherwise gRPC names the path of the socket as the authority, which strict servers refuse as malformed.
_LOCAL = [("grpc.default_authority", "localhost")]

_PROBE_SECONDS = 1.0


@dataclass(frozen=True)
class Target:
    """A Unix socket of this machine, or an address."""

    socket_path: Optional[str] = None
    address: str = ""
    tls: bool = False
    tls_ca: Optional[bytes] = None

    def __str__(self) -> str:
        if self.socket_path is not None:
            return f"unix:{self.socket_path}"
        return f"{'https' if self.tls else 'http'}://{self.address}"

    def channel(self) -> grpc.Channel:
        if self.socket_path is not None:
            return grpc.insecure_channel(f"unix:{self.socket_path}", options=[*_OPTIONS, *_LOCAL])
        options = [*_OPTIONS, *_KEEPALIVE]
        if self.tls:
            credentials = grpc.ssl_channel_credentials(root_certificates=self.tls_ca)
            return grpc.secure_channel(self.address, credentials, options=options)
        return grpc.insecure_channel(self.address, options=options)

    def is_far(self) -> bool:
        """Whether a network lies between, which may lose what is sent."""
        return self.socket_path is None

    def is_gone(self) -> bool:
        """Whether certainly nobody listens on the Unix socket. Of an address nothing is certain."""
        if self.socket_path is None:
            return False
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.settimeout(_PROBE_SECONDS)
            try:
                probe.connect(self.socket_path)
            except OSError as error:
                return error.errno in (errno.ENOENT, errno.ECONNREFUSED, errno.ENOTDIR)
            return False
