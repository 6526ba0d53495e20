"""Prometheus metrics in vLLM's vocabulary.

families.py     the gateway's own families        watch.py        one answer's clock
requests.py     counts exchanges                  engine.py       the engines' figures, from Triton
machine.py      processors, memory, GPUs          exposition.py   all of it at /metrics
"""

from conch.gateway.watching.metrics.families import REASONS, Metrics, ModelMetrics
from conch.gateway.watching.metrics.watch import Watch

__all__ = ["REASONS", "Metrics", "ModelMetrics", "Watch"]
