"""Our side of a comparison: the whole stack in one format, and how many bytes a decode step of a checkpoint reads."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from conch.bench.sides import Facts, Process, Server, Side, address_told
from conch_build.checkpoint import Checkpoint
from conch_build.errors import CheckpointError
from conch_build.families import EMBEDDING, HEAD
from conch_build.files import home
from conch_build.sizing import cpu_kv_dtype, kv_bytes_per_token
from conch_build.weights import Weights, read_weights

Say = Callable[[str], None]

CONCURRENT = 64
"""Requests at once that every side is set up for."""
CONTEXT = 2048
"""Tokens of a request that every side is set up for."""

FORMATS = {
    "bf16": "{format: none, kv_cache: bf16}",
    "int8": "{format: int8}",
    "int8_sq": "{format: int8_sq}",
    "int4": "{format: int4_awq}",
}
"""Our formats: what stands under `quantization` in the plan."""

_WIDENING = ("Convert", "Multiply", "Subtract", "Reshape")
_PLAN = """\
name: bench-{format}
model: {{checkpoint: sample}}
quantization: {quantization}
engine:
  max_batch_size: {concurrent}
  max_seq_len: {context}
  kv_cache: {{size: 2GiB}}
serving:
  triton: {{http_port: 0, grpc_port: 0, metrics_port: 0}}
  gateway: {{port: 0}}
"""


def ours(format: str, plan_file: Path | None, say: Say) -> Side:
    """Our stack, built and ready to be started. `plan_file`: a plan in place of the format's own."""
    from conch_build.pipeline import build
    from conch_build.plan import load_plan

    folder = home() / "bench"
    folder.mkdir(parents=True, exist_ok=True)
    if plan_file is None:
        plan_file = folder / f"{format}.yaml"
        plan_file.write_text(
            _PLAN.format(format=format, quantization=FORMATS[format], concurrent=CONCURRENT, context=CONTEXT)
        )
    plan = load_plan(plan_file)
    built = build(plan, say=say)
    facts = Facts(
        format,
        f"conch serve, {plan.quantization.format}, KV {cpu_kv_dtype(plan.quantization.kv_cache)}, "
        f"speculation {plan.engine.speculation.method}; gateway, Triton and engine as they come",
        engine_weight_bytes(built.engine.path),
        cached_bytes(built.checkpoint, plan.quantization.kv_cache),
        plan.engine.max_batch_size,
    )
    command = [sys.executable, "-m", "conch.cli", "serve", str(plan_file), "--json"]
    return Server(facts, Process(command, folder / f"{format}.log"), plan.name, address_told)


def engine_weight_bytes(engine: Path) -> int:
    """Bytes of constants that a decode step of an engine reads: all but tables of which it takes a row."""
    import openvino as ov

    model = ov.Core().read_model(engine / "model.xml")
    constants = [op for op in model.get_ops() if op.get_type_name() == "Constant"]
    return sum(op.get_output_tensor(0).size for op in constants if not _only_looked_up(op))


def _only_looked_up(op: Any) -> bool:
    readers = [target.get_node() for output in op.outputs() for target in output.get_target_inputs()]
    return all(
        reader.get_type_name() == "Gather" or (reader.get_type_name() in _WIDENING and _only_looked_up(reader))
        for reader in readers
    )


def checkpoint_weight_bytes(checkpoint: Path) -> int:
    """The same of a checkpoint, served as it is: all but an embedding that is not the head too."""
    weights = _weights(checkpoint)
    looked_up = weights.tensors[EMBEDDING] if HEAD in weights.tensors else None
    return weights.byte_count - (looked_up.end - looked_up.start if looked_up else 0)


def matrix_bytes(checkpoint: Path) -> list[int]:
    """Sizes of a checkpoint's matrices, for a read that is shaped like it."""
    return [tensor.end - tensor.start for tensor in _weights(checkpoint).tensors.values() if len(tensor.shape) == 2]


def cached_bytes(checkpoint: Checkpoint, dtype: str) -> int:
    """Bytes of one token's keys and values where the cache is of a plan's `dtype`."""
    info = checkpoint.info
    return kv_bytes_per_token(info.num_layers, info.num_kv_heads, info.head_dim, cpu_kv_dtype(dtype))


def _weights(checkpoint: Path) -> Weights:
    problems: list[CheckpointError] = []
    weights = read_weights(checkpoint, problems)
    if weights is None:
        raise problems[0]
    return weights
