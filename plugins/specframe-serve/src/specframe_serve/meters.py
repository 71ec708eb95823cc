"""Metrics of /metrics: vLLM's names, which the field's clients read, and specframe's own figures."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

PHASES = ("prefill", "draft", "score", "verify", "commit")
SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
PER_TOKEN = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1, 2.5)
REASONS = {"end": "stop", "stop": "stop", "length": "length", "failed": "error"}
"""Reasons for a row's end, in the clients' words; everything else is `abort`: a client left, or the time was up."""


@dataclass
class Sources:
    """Sources of the current figures."""

    waiting: Callable[[], int]
    running: Callable[[], int]
    seconds: Mapping[str, float]
    """Seconds by phase."""


@dataclass
class Counts:
    """Acceptance over all rows' cycles; admissions are none."""

    cycles: int = 0
    drafts: int = 0
    """Cycles that had a draft: vLLM does not count the others."""
    drafted: int = 0
    accepted: int = 0
    reached: list[int] = field(default_factory=list)
    """reached[d]: cycles whose accepted path has more than d tokens."""
    possible: list[int] = field(default_factory=list)
    """possible[d]: cycles whose draft has more than d levels."""

    def add(self, accepted: int, drafted: int, levels: int) -> None:
        """Counts one cycle of a row: accepted and drafted tokens, and the levels of the draft."""
        self.cycles += 1
        self.drafts += drafted > 0
        self.drafted += drafted
        self.accepted += accepted
        for counts, depth in ((self.reached, accepted), (self.possible, levels)):
            counts.extend([0] * (levels - len(counts)))
            for level in range(depth):
                counts[level] += 1


class Meters:
    """The figures of one server, in a registry of its own; they are made in the engine's thread and read in others."""

    def __init__(self, model: str) -> None:
        self.registry = CollectorRegistry()
        self._model = model
        self._counts = Counts()
        self._sources: Sources | None = None

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
        self._gap = histogram("vllm:inter_token_latency_seconds", "By cycle of a row, seconds per token", PER_TOKEN)
        self.registry.register(self)

    def follow(self, sources: Sources) -> None:
        """Shows the values of these sources at the time of asking."""
        self._sources = sources

    def admitted(self, tokens: int, found: int, waited: float) -> None:
        """Counts a row whose prompt was read, `found` tokens of it before, and whose first token is there."""
        self._prompted.inc(tokens)
        self._asked.inc(tokens)
        self._found.inc(found)
        self._first.observe(waited)

    def decoded(self, accepted: int, drafted: int, levels: int) -> None:
        """Counts one cycle of a row."""
        self._counts.add(accepted, drafted, levels)

    def paced(self, seconds: float) -> None:
        """Counts the seconds per token of one cycle of a row."""
        self._gap.observe(seconds)

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
        """The figures that are worked out when they are asked for: this is a collector of its own registry."""
        counts, sources = self._counts, self._sources
        for name, text, value in (
            ("num_drafts", "Rows' cycles that had a draft", counts.drafts),
            ("num_draft_tokens", "Drafted tokens: a tree's nodes", counts.drafted),
            ("num_accepted_tokens", "Drafted tokens that were accepted", counts.accepted),
        ):
            yield self._counters(f"vllm:spec_decode_{name}", text, {(): value})
        yield self._counters(
            "vllm:spec_decode_num_accepted_tokens_per_pos",
            "Drafted tokens that were accepted, by depth from 0",
            _by_depth(counts.reached),
            "position",
        )
        yield self._counters("specframe:cycles", "Rows' cycles, those without a draft included", {(): counts.cycles})
        yield self._counters(
            "specframe:cycles_drafted", "Rows' cycles with a draft so deep", _by_depth(counts.possible), "depth"
        )
        yield self._gauges(
            "specframe:tau",
            "Tokens per cycle since the start, the target's own token included",
            {(): 1 + counts.accepted / max(counts.cycles, 1)},
        )
        yield self._gauges(
            "specframe:alpha",
            "Share of cycles whose accepted path got so deep, since the start",
            _by_depth([count / counts.cycles for count in counts.reached]),
            "depth",
        )
        if sources is None:
            return
        yield self._gauges("vllm:num_requests_waiting", "Rows that wait for a slot", {(): sources.waiting()})
        yield self._gauges("vllm:num_requests_running", "Rows that are being decoded", {(): sources.running()})
        seconds: dict[tuple[str, ...], float] = {(phase,): sources.seconds.get(phase, 0.0) for phase in PHASES}
        yield self._counters("specframe:phase_seconds", "Seconds by phase", seconds, "phase")

    def _counters(
        self, name: str, text: str, values: Mapping[tuple[str, ...], float], *labels: str
    ) -> CounterMetricFamily:
        family = CounterMetricFamily(name, text, labels=("model_name", *labels))
        for own, value in values.items():
            family.add_metric([self._model, *own], value)
        return family

    def _gauges(self, name: str, text: str, values: Mapping[tuple[str, ...], float], *labels: str) -> GaugeMetricFamily:
        family = GaugeMetricFamily(name, text, labels=("model_name", *labels))
        for own, value in values.items():
            family.add_metric([self._model, *own], value)
        return family


def _by_depth(values: list[int] | list[float]) -> dict[tuple[str, ...], float]:
    return {(str(depth),): value for depth, value in enumerate(values)}
