"""The gateway's own metric families, in vLLM's vocabulary, and a model's children of them.

What vLLM has no word for starts with `conch:`. Knows nothing of requests, nor of who tells it what happened.
"""

from __future__ import annotations

from importlib.metadata import version

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics

# Bounds in seconds, in tokens and in answers.
_FIRST = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
_BETWEEN = (0.002, 0.005, 0.01, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05, 0.075, 0.1, 0.2, 0.3, 0.5, 0.75, 1, 2.5)
_WHOLE = (0.05, 0.1, 0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960)
_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000)
_ANSWERS = (1, 2, 5, 10, 20, 50, 100)

REASONS = ("stop", "length", "abort", "error")
ERRORS = (
    "invalid_request",
    "not_found",
    "overloaded",
    "deadline_unreachable",
    "unavailable",
    "shutting_down",
    "timeout",
    "engine_error",
)
"""Kinds that are there from the start, so that their first occurrence is seen as a rise."""

_HISTOGRAMS = {
    "first_token": ("vllm:time_to_first_token_seconds", "From a request to its first token, of streams", _FIRST),
    "between_tokens": ("vllm:inter_token_latency_seconds", "From one token to the next, of streams", _BETWEEN),
    "per_token": (
        "vllm:request_time_per_output_token_seconds",
        "Mean of an answer's times from one token to the next, of streams",
        _BETWEEN,
    ),
    "whole": ("vllm:e2e_request_latency_seconds", "From a request to the end of its answer", _WHOLE),
    "inference": ("vllm:request_inference_time_seconds", "From an engine being asked to the answer's end", _WHOLE),
    "prefill": (
        "vllm:request_prefill_time_seconds",
        "From an engine being asked to the first token, its own queue included, of streams",
        _WHOLE,
    ),
    "decode": ("vllm:request_decode_time_seconds", "From the first token to the answer's end, of streams", _WHOLE),
    "prompt_size": ("vllm:request_prompt_tokens", "Tokens of a prompt", _TOKENS),
    "answer_size": ("vllm:request_generation_tokens", "Tokens of an answer", _TOKENS),
    "computed": (
        "vllm:request_prefill_kv_computed_tokens",
        "Tokens of a request's prompts that were not found in a cache",
        _TOKENS,
    ),
    "longest": ("vllm:request_max_num_generation_tokens", "Tokens of a request's longest answer", _TOKENS),
    "param_max_tokens": ("vllm:request_params_max_tokens", "What a request's answers may have together", _TOKENS),
    "param_n": ("vllm:request_params_n", "How many answers a request wants to each prompt", _ANSWERS),
}
_COUNTERS = {
    "prompt_tokens": ("vllm:prompt_tokens", "Tokens of all prompts"),
    "cached_tokens": ("vllm:prompt_tokens_cached", "Tokens of prompts that were found in a cache"),
    "generated_tokens": ("vllm:generation_tokens", "Tokens of all answers"),
    "draft_tokens": ("conch:request_draft_tokens", "Tokens that were guessed for answers"),
    "accepted_tokens": ("conch:request_accepted_tokens", "Guessed tokens that were right"),
    "cancelled": ("conch:cancelled_requests", "Requests whose client went away"),
    "usd": ("conch:cost_usd", "What the time of the engine costs that requests took, at the plan's price"),
}


class Metrics:
    """The families; each has a child a model, and one a variant of an experiment."""

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        labels = ["model_name", "variant"]
        self.histograms = {
            key: Histogram(name, text, labels, registry=self.registry, buckets=buckets)
            for key, (name, text, buckets) in _HISTOGRAMS.items()
        }
        self.counters = {
            key: Counter(name, text, labels, registry=self.registry) for key, (name, text) in _COUNTERS.items()
        }
        self.ended = Counter(
            "vllm:request_success",
            "Answers by how they ended; abort: the client went away",
            [*labels, "finished_reason"],
            registry=self.registry,
        )
        self.errors = Counter(
            "conch:request_errors", "Requests that failed, by kind", [*labels, "kind"], registry=self.registry
        )
        self.responses = Counter(
            "conch:http_responses",
            "Responses by route and status; 499: the client went away before",
            ["route", "status"],
            registry=self.registry,
        )
        self.disaggregated = Counter(
            "conch:disaggregated_requests",
            "Requests for two engines. split: as meant; whole: their first token was the last; alone: done anew by one",
            ["outcome"],
            registry=self.registry,
        )
        self.dropped_lines = Counter(
            "conch:access_log_dropped_lines", "Lines that could not be written in time", registry=self.registry
        )
        Gauge("conch:build_info", "The release", ["version"], registry=self.registry).labels(version("conch")).set(1)
        self._children: dict[tuple[str, str], ModelMetrics] = {}

    def of(self, model_name: str, variant: str = "") -> ModelMetrics:
        """A model's children, or a variant's, which are there from now on, at zero."""
        key = (model_name, variant)
        if key not in self._children:
            self._children[key] = ModelMetrics(self, *key)
        return self._children[key]


class ModelMetrics:
    """The children of one model, or of one variant of an experiment."""

    def __init__(self, families: Metrics, model_name: str, variant: str) -> None:
        def histogram(key: str) -> Histogram:
            return families.histograms[key].labels(model_name, variant)

        def counter(key: str) -> Counter:
            return families.counters[key].labels(model_name, variant)

        self._families = families
        self._names = (model_name, variant)
        self.first_token = histogram("first_token")
        self.between_tokens = histogram("between_tokens")
        self.per_token = histogram("per_token")
        self.whole = histogram("whole")
        self.inference = histogram("inference")
        self.prefill = histogram("prefill")
        self.decode = histogram("decode")
        self.prompt_size = histogram("prompt_size")
        self.answer_size = histogram("answer_size")
        self.computed = histogram("computed")
        self.longest = histogram("longest")
        self.param_max_tokens = histogram("param_max_tokens")
        self.param_n = histogram("param_n")
        self.prompt_tokens = counter("prompt_tokens")
        self.cached_tokens = counter("cached_tokens")
        self.generated_tokens = counter("generated_tokens")
        self.draft_tokens = counter("draft_tokens")
        self.accepted_tokens = counter("accepted_tokens")
        self.cancelled = counter("cancelled")
        self.usd = counter("usd")
        self.ended = {reason: families.ended.labels(model_name, variant, reason) for reason in REASONS}
        for kind in ERRORS:
            families.errors.labels(model_name, variant, kind)

    def of_variant(self, name: str) -> ModelMetrics:
        """The same of one variant alone."""
        return self._families.of(self._names[0], name)

    def failed(self, kind: str) -> None:
        """A request failed, in one of `ERRORS` or in a way of its own."""
        self._families.errors.labels(*self._names, kind).inc()
