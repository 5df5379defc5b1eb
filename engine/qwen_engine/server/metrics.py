"""/metrics: vLLM's series under vLLM's names and labels, and ours under `qwen_`.

Owns the registry, and counts what happens to requests as the engine's observer; the engine's own
figures are `engine_series`. Names after vLLM 0.32 (vllm/v1/metrics/loggers.py); dashboards, KEDA
queries and the Gateway API's endpoint picker read them.
"""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)

from qwen_engine.generation import Course, EndReason
from qwen_engine.server.engine_series import LABELS, EngineCollector, Snapshot

_TTFT = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
)  # fmt: skip
_INTER_TOKEN = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0,
    40.0, 80.0,
)  # fmt: skip
_REQUEST = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0,
    480.0, 960.0, 1920.0, 7680.0,
)  # fmt: skip
# vLLM ends at the model's length; this is beyond every model's.
_TOKENS = tuple(float(digit * 10**power) for power in range(6) for digit in (1, 2, 5))
_CHOICES = (1.0, 2.0, 5.0, 10.0, 20.0)
_REASONS: tuple[EndReason, ...] = ("stop", "length", "abort", "error")

# Of every request that ends: the series after "vllm:", its help, its buckets.
_OF_REQUESTS: dict[str, tuple[str, tuple[float, ...]]] = {
    "time_to_first_token_seconds": ("Time to first token in seconds.", _TTFT),
    "inter_token_latency_seconds": ("Time between tokens in seconds.", _INTER_TOKEN),
    "request_time_per_output_token_seconds": (
        "Mean time per token after the first, of each request.", _INTER_TOKEN),
    "e2e_request_latency_seconds": ("End to end request latency in seconds.", _REQUEST),
    "request_queue_time_seconds": ("Time spent waiting for the first step.", _REQUEST),
    "request_prefill_time_seconds": ("Time from the first step to the first token.", _REQUEST),
    "request_decode_time_seconds": ("Time from the first token to the last.", _REQUEST),
    "request_inference_time_seconds": ("Time from the first step to the last token.", _REQUEST),
    "request_prompt_tokens": ("Prompt tokens of each request.", _TOKENS),
    "request_prefill_kv_computed_tokens": (
        "Prompt tokens that no cached prefix saved.", _TOKENS),
    "request_generation_tokens": ("Tokens generated for each request.", _TOKENS),
    "request_params_max_tokens": ("max_tokens of each request.", _TOKENS),
    "request_max_num_generation_tokens": ("Most tokens a request may generate.", _TOKENS),
    "request_params_n": ("n of each request.", _CHOICES),
}  # fmt: skip


class Metrics:
    """The registry, and the engine's observer."""

    def __init__(self, model_name: str, snapshot: Callable[[], Snapshot]) -> None:
        self._registry = CollectorRegistry()
        labels = (model_name, "0")
        self._histograms = {
            name: Histogram(
                f"vllm:{name}", text, LABELS, buckets=buckets, registry=self._registry
            ).labels(*labels)
            for name, (text, buckets) in _OF_REQUESTS.items()
        }
        success = self._counter("request_success", "Requests that ended.", "finished_reason")
        self._ended = {reason: success.labels(*labels, reason) for reason in _REASONS}
        refused = self._counter("admission_rejections", "Requests refused with 429.", "reason")
        self._refused = refused.labels(*labels, "max_num_queued_reqs")
        self._registry.register(EngineCollector(snapshot))
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)

    def render(self) -> bytes:
        """Return Prometheus' text format."""
        return generate_latest(self._registry)

    def asked(self, num_choices: int) -> None:
        """Count one request for so many choices."""
        self._observe("request_params_n", num_choices)

    def refused(self) -> None:
        self._refused.inc()

    def first_token(self, seconds: float) -> None:
        self._observe("time_to_first_token_seconds", seconds)

    def next_token(self, seconds: float) -> None:
        self._observe("inter_token_latency_seconds", seconds)

    def ended(self, course: Course) -> None:
        self._ended[course.reason].inc()
        self._observe("e2e_request_latency_seconds", course.to_end)
        self._observe("request_prompt_tokens", course.num_prompt_tokens)
        self._observe("request_generation_tokens", course.num_output_tokens)
        self._observe("request_params_max_tokens", course.max_tokens)
        self._observe("request_max_num_generation_tokens", course.max_tokens)
        self._observe_phases(course)

    def _observe_phases(self, course: Course) -> None:
        start, first, last = course.to_first_step, course.to_first_token, course.to_last_token
        if start is None or first is None or last is None:
            return  # it ended before its first token
        computed = course.num_prompt_tokens - course.num_cached_tokens
        self._observe("request_prefill_kv_computed_tokens", computed)
        self._observe("request_queue_time_seconds", start)
        self._observe("request_prefill_time_seconds", first - start)
        self._observe("request_decode_time_seconds", last - first)
        self._observe("request_inference_time_seconds", last - start)
        if course.num_output_tokens > 1:
            mean = (last - first) / (course.num_output_tokens - 1)
            self._observe("request_time_per_output_token_seconds", mean)

    def _observe(self, name: str, value: float) -> None:
        self._histograms[name].observe(value)

    def _counter(self, name: str, text: str, label: str) -> Counter:
        return Counter(f"vllm:{name}", text, (*LABELS, label), registry=self._registry)
