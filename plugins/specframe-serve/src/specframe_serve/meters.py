"""Metrics of /metrics: vLLM's names, which clients of the field read, and specframe's figures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sized
from functools import partial
from typing import TypeVar

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from specframe.plugin import Acceptance

Family = TypeVar("Family", CounterMetricFamily, GaugeMetricFamily)
Values = float | list[int] | list[float] | Mapping[str, float]
"""One value, values by position, or values by name."""
PHASES = ("prefill", "draft", "score", "verify", "commit")
SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
PER_TOKEN = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1, 2.5)
REASONS = {"end": "stop", "stop": "stop", "length": "length", "failed": "error"}
"""Finish reasons in the clients' terms; all others are `abort`: the client left, or the time was over."""


class Meters:
    """Metrics of one server in a separate registry; updated in the engine's thread, read in others."""

    def __init__(self, model: str, waiting: Sized, running: Sized, seconds: Mapping[str, float]) -> None:
        """Creates the metrics; waiting rows, running rows and seconds by phase are read when requested."""
        self.registry = CollectorRegistry()
        self._model = model
        self.acceptance = Acceptance()
        """Acceptance over the cycles of all rows, admissions excluded."""
        self._waiting, self._running, self._seconds = waiting, running, seconds

        def counter(name: str, text: str) -> Counter:
            return Counter(name, text, ("model_name",), registry=self.registry).labels(model)

        def histogram(name: str, text: str, buckets: tuple[float, ...] = SECONDS) -> Histogram:
            return Histogram(name, text, ("model_name",), registry=self.registry, buckets=buckets).labels(model)

        self._prompted = counter("vllm:prompt_tokens", "Prompt tokens read")
        self._asked = counter("vllm:prefix_cache_queries", "Prompt tokens looked for in the prefix cache")
        self._found = counter("vllm:prefix_cache_hits", "Prompt tokens found in the prefix cache, and not read")
        self.generated = counter("vllm:generation_tokens", "Tokens generated")
        self.refused = counter("specframe:requests_refused", "Requests refused because the queue was full")
        self._finished = Counter(
            "vllm:request_success", "Rows that ended", ("model_name", "finished_reason"), registry=self.registry
        )
        self._first = histogram("vllm:time_to_first_token_seconds", "From arrival to the first token")
        self._whole = histogram("vllm:e2e_request_latency_seconds", "From arrival to the last token")
        self._pace = histogram(
            "vllm:request_time_per_output_token_seconds", "By row, seconds per token after the first", PER_TOKEN
        )
        self.gap = histogram("vllm:inter_token_latency_seconds", "By cycle of a row, seconds per token", PER_TOKEN)
        self.registry.register(self)

    def admitted(self, tokens: int, found: int, waited: float) -> None:
        """Counts a row at its first token, after its prompt was read; `found` prompt tokens came from the cache."""
        self._prompted.inc(tokens)
        self._asked.inc(tokens)
        self._found.inc(found)
        self._first.observe(waited)

    def ended(self, reason: str, whole: float, decoding: float | None, tokens: int) -> None:
        """Counts a row that ended, `decoding` seconds after its first token."""
        self._finished.labels(self._model, REASONS.get(reason, "abort")).inc()
        self._whole.observe(whole)
        if decoding is not None and tokens > 1:
            self._pace.observe(decoding / (tokens - 1))

    def render(self) -> bytes:
        """Renders all metrics in Prometheus's text format."""
        return generate_latest(self.registry)

    def collect(self) -> Iterator[Metric]:
        """Yields the metrics that are computed on request: this object is a collector of its own registry."""
        counts = self.acceptance
        counter, gauge = partial(self._shown, CounterMetricFamily), partial(self._shown, GaugeMetricFamily)
        yield counter("vllm:spec_decode_num_drafts", "Rows' cycles that had a draft", sum(counts.possible[:1]))
        yield counter("vllm:spec_decode_num_draft_tokens", "Drafted tokens: a tree's nodes", counts.drafted)
        yield counter("vllm:spec_decode_num_accepted_tokens", "Drafted tokens that were accepted", counts.accepted)
        text = "Drafted tokens that were accepted, by depth from 0"
        yield counter("vllm:spec_decode_num_accepted_tokens_per_pos", text, counts.by_depth, "position")
        yield counter("specframe:cycles", "Rows' cycles, those without a draft included", counts.cycles)
        yield counter("specframe:cycles_drafted", "Rows' cycles with a draft so deep", counts.possible, "depth")
        text = "Tokens per cycle since the start, the target's own token included"
        yield gauge("specframe:tau", text, counts.tau)
        text = "Share of cycles whose accepted path got so deep, since the start"
        yield gauge("specframe:alpha", text, counts.alpha, "depth")
        yield gauge("vllm:num_requests_waiting", "Rows that wait for a slot", len(self._waiting))
        yield gauge("vllm:num_requests_running", "Rows that are being decoded", len(self._running))
        seconds = {phase: self._seconds.get(phase, 0.0) for phase in PHASES}
        yield counter("specframe:phase_seconds", "Seconds by phase", seconds, "phase")

    def _shown(self, kind: type[Family], name: str, text: str, values: Values, label: str | None = None) -> Family:
        """Returns a metric with one value, or with values by a label."""
        family = kind(name, text, labels=["model_name"] if label is None else ["model_name", label])
        found = dict(enumerate(values)) if isinstance(values, list) else values
        for own, value in found.items() if isinstance(found, Mapping) else [(None, found)]:
            family.add_metric([self._model] if own is None else [self._model, str(own)], value)
        return family
