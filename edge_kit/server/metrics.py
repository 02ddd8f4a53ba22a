"""What Prometheus reads at /metrics."""

from __future__ import annotations

import time

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

prometheus_client.disable_created_metrics()  # a second series beside each, which nothing here reads

_FIRST_TOKEN = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 60, 180)  # seconds
_TOKEN = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)
_ANSWER = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 60, 180, 600)
_BATCH = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64)  # requests


class Metrics:
    """Counts what passes, and asks a Service for the rest when it is read."""

    def __init__(self, service):
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.http_requests = Counter(
            "edge_kit_http_requests", "HTTP requests", ["route", "status"], registry=self.registry
        )
        self.first_token = Histogram(
            "edge_kit_first_token_seconds",
            "From the arrival of a request at the queue to its first token",
            buckets=_FIRST_TOKEN,
            registry=self.registry,
        )
        self.token = Histogram(
            "edge_kit_token_seconds",
            "Between two tokens of an answer",
            buckets=_TOKEN,
            registry=self.registry,
        )
        self.answer = Histogram(
            "edge_kit_answer_seconds",
            "From the arrival of a request at the queue to its last token",
            buckets=_ANSWER,
            registry=self.registry,
        )
        self.registry.register(_ServiceCollector(service))

    def clock(self) -> Clock:
        """One for the items of a request that is about to be lined up."""
        return Clock(self)

    def text(self) -> bytes:
        """All figures in Prometheus' text format."""
        return generate_latest(self.registry)


class Clock:
    """Times the items of one answer."""

    def __init__(self, metrics: Metrics):
        self._metrics = metrics
        self._began, self._last = time.perf_counter(), None

    def item(self, item) -> None:
        """An item, or an exception, has come."""
        if isinstance(item, Exception):
            return
        now = time.perf_counter()
        if item.token is not None:
            if self._last is None:
                self._metrics.first_token.observe(now - self._began)
            else:
                self._metrics.token.observe(now - self._last)
            self._last = now
        if item.finish_reason is not None:
            self._metrics.answer.observe(now - self._began)


class _ServiceCollector:
    def __init__(self, service):
        self._service = service

    def collect(self):
        service = self._service
        yield _states("edge_kit_status", "What /health says", service.status)
        cache = service.answer_cache
        yield CounterMetricFamily("edge_kit_answer_cache_hits", "Answers given again", cache.hits)
        yield CounterMetricFamily(
            "edge_kit_answer_cache_misses", "Greedy requests that had to be computed", cache.misses
        )
        yield GaugeMetricFamily("edge_kit_answer_cache_bytes", "Of answers that are kept", cache.n_bytes)
        if service.model is None:
            return
        stats = service.batcher.stats()
        yield GaugeMetricFamily("edge_kit_queue_requests", "Requests that wait for a place", stats.waiting)
        yield GaugeMetricFamily("edge_kit_running_requests", "Requests in the batch", stats.running)
        ended = CounterMetricFamily(
            "edge_kit_requests_ended", "Requests by how they ended", labels=["reason"]
        )
        for reason, count in sorted(stats.ended.items()):
            ended.add_metric([reason], count)
        yield ended
        for name, text, count in (
            ("edge_kit_prompt_tokens", "Tokens of prompts", stats.prompt_tokens),
            ("edge_kit_cached_tokens", "Of these, found in a cache", stats.cached_tokens),
            ("edge_kit_idle_tokens", "Computed ahead for next turns", stats.idle_tokens),
            ("edge_kit_generated_tokens", "Tokens of answers", stats.generated_tokens),
            ("edge_kit_step_seconds", "Time in steps of the batch", stats.step_seconds),
        ):
            yield CounterMetricFamily(name, text, count)
        yield _batch_sizes(stats.batch_sizes)
        yield GaugeMetricFamily("edge_kit_kept_sessions", "Kept for later turns", len(service.pool))
        yield GaugeMetricFamily("edge_kit_kept_bytes", "Of their caches", service.pool.n_bytes())
        yield GaugeMetricFamily("edge_kit_model_bytes", "Of the mapped file", service.model.info.file_bytes)


def _states(name: str, text: str, now: str):
    family = GaugeMetricFamily(name, text, labels=["status"])
    for status in ("loading", "ready", "overloaded", "stopping"):
        family.add_metric([status], float(status == now))
    return family


def _batch_sizes(counts: dict):
    """The histogram of {requests in a step: steps}."""
    buckets = [(str(float(le)), sum(n for size, n in counts.items() if size <= le)) for le in _BATCH]
    buckets.append(("+Inf", sum(counts.values())))
    total = sum(size * n for size, n in counts.items())
    return HistogramMetricFamily("edge_kit_batch_size", "Requests in a step", buckets, total)
