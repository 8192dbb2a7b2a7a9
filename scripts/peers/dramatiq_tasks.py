"""The task of Dramatiq's workers, with the middleware that it comes with. `PEER_RESULTS` has results stored."""

import os

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from dramatiq.results import Results
from dramatiq.results.backends import RedisBackend

_url = os.environ["PEER_REDIS"]
_results = os.environ.get("PEER_RESULTS") == "1"

broker = RedisBroker(url=f"{_url}/0")
if _results:
    broker.add_middleware(Results(backend=RedisBackend(url=f"{_url}/1")))
dramatiq.set_broker(broker)


def _nothing():
    return None


nothing = dramatiq.actor(_nothing, actor_name="nothing", **({"store_results": True} if _results else {}))
