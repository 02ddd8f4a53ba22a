"""The server as a Ray Serve application, for more than one machine: replicas, sticky sessions, autoscaling.

    RAY_USAGE_STATS_ENABLED=0 serve run edge_kit.server.ray_app:app file=/models/demo.nb max_replicas=4

The arguments are the fields of `Settings` and of `Scaling` below; in a config file they stand under `args`.
The .nb file lies at the same path on every machine. A request goes to the replica that its X-Session-Id
hashes to, so a conversation finds its cache again; without that header it goes to any. When a replica comes
or goes, only the sessions that hash to it move: they are prefilled anew. Needs the extra `ray`.
"""

import asyncio
import dataclasses
import os
from typing import Optional, get_type_hints

import pydantic
from ray import serve
from ray.serve.config import AutoscalingConfig, BackpressureConfig, RequestRouterConfig

from lite_runtime.errors import UsageError

from .app import create_app
from .service import Service
from .settings import KEY_VARIABLE, Settings

ROUTER = "ray.serve.experimental.consistent_hash_router.ConsistentHashRouter"
_POLL = 0.05  # seconds between two looks at a model that is being loaded


@dataclasses.dataclass(frozen=True)
class Scaling:
    """How many replicas, and where.

    min_replicas, max_replicas: there are more, the more requests are under way.
    target_requests: under way per replica that Serve aims at; None = max_batch.
    look_back: seconds over which it averages them.
    upscale_delay, downscale_delay: seconds that it waits before it starts or ends one.
    max_per_node: replicas on one machine; None = as many as num_cpus allow.
    num_cpus: what Ray reckons for one; None = its threads, 1 if they are not given.
    grace: seconds that the running answers of a replica get when it ends.
    """

    min_replicas: int = 1
    max_replicas: int = 2
    target_requests: Optional[float] = None
    look_back: float = 30.0
    upscale_delay: float = 10.0
    downscale_delay: float = 300.0
    max_per_node: Optional[int] = None
    num_cpus: Optional[float] = None
    grace: float = 30.0


@serve.deployment(name="edge-kit")
@serve.ingress()
class Replica:
    """One model, loaded. Serve sends nothing here before it answers, and replaces it when it fails."""

    def __init__(self, settings: Settings):
        self._service = Service(settings)

    def __serve_build_asgi_app__(self):
        return create_app(self._service.settings, self._service)

    async def check_health(self) -> None:
        """Returns once the model is loaded; raises what has failed."""
        while self._service.status == "loading" and self._service.error is None:
            await asyncio.sleep(_POLL)
        if self._service.error is not None:
            raise self._service.error


def app(args: dict) -> serve.Application:
    """The application; `args` from the command line are texts. Raises UsageError."""
    scaling_names = {field.name for field in dataclasses.fields(Scaling)}
    settings = _read(Settings, {name: value for name, value in args.items() if name not in scaling_names})
    scaling = _read(Scaling, {name: value for name, value in args.items() if name in scaling_names})
    if settings.api_key is None and os.environ.get(KEY_VARIABLE):
        settings = dataclasses.replace(settings, api_key=os.environ[KEY_VARIABLE])
    options = {"num_cpus": settings.threads or 1 if scaling.num_cpus is None else scaling.num_cpus}
    return Replica.options(
        # One that is full hands over to its neighbour; when all are, requests wait in Serve.
        max_ongoing_requests=settings.max_batch + settings.max_queue,
        max_queued_requests=settings.max_queue,
        backpressure_config=BackpressureConfig(status_code=429, retry_after_s=1),
        request_router_config=RequestRouterConfig(request_router_class=ROUTER),
        autoscaling_config=AutoscalingConfig(
            min_replicas=scaling.min_replicas,
            max_replicas=scaling.max_replicas,
            target_ongoing_requests=scaling.target_requests or settings.max_batch,
            look_back_period_s=scaling.look_back,
            metrics_interval_s=min(10.0, scaling.look_back / 3),
            upscale_delay_s=scaling.upscale_delay,
            downscale_delay_s=scaling.downscale_delay,
        ),
        graceful_shutdown_timeout_s=scaling.grace,
        max_replicas_per_node=scaling.max_per_node,
        ray_actor_options=options,
    ).bind(settings)


def _read(kind, values: dict):
    """The dataclass `kind` with `values`, which may be texts."""
    hints = get_type_hints(kind)
    fields = {
        field.name: (hints[field.name], ... if field.default is dataclasses.MISSING else field.default)
        for field in dataclasses.fields(kind)
    }
    model = pydantic.create_model(kind.__name__, __config__=pydantic.ConfigDict(extra="forbid"), **fields)
    try:
        return kind(**dict(model(**values)))
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        raise UsageError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None
