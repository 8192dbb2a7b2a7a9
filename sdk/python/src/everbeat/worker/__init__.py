"""The worker process: ``python -m everbeat.worker module:app``."""

import os

# gRPC would otherwise act on every fork() of a task, which aborts the child while the link is in use. Tasks may start
# processes; none of those uses the link. To be said before gRPC is imported.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
