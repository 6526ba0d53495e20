"""`conch init [CHECKPOINT]`: a commented plan that loads, and that passes `conch check` as it stands."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from conch_build.console import Console, with_console

_TEMPLATE = """\
# A plan for Conch: what to build and how to serve it. `conch check` reads it, `conch build` builds it.
# Keys left out take the values shown by `conch schema`. Sizes and times carry their unit (1GiB, 100ms).

name: {name:<25} # the model's name in the API

model:
  checkpoint: {checkpoint:<17} # Hugging Face directory, hub id, .gguf file, or `sample`

quantization:
  format: int8                  # none | int8 | int8_sq | int4_awq | fp8
  kv_cache: auto                # keys and values: u8 on CPUs; or bf16, f32
  calibration:                  # read by int8_sq, int4_awq and fp8
    data: builtin               # builtin | self (the model's own words) | a .txt or .jsonl file
    samples: 64                 # texts
    max_length: 512             # tokens of each

engine:
  backend: openvino             # runs on any x86-64 CPU
  max_batch_size: 64            # requests that generate at the same time
  max_num_tokens: 2048          # tokens of one step, prompts and decoding together
  max_seq_len: {max_seq_len:<16} # tokens of one request, prompt and answer together
  max_queue_size: 1024          # requests that may wait; more are refused
  chunked_prefill: true         # long prompts are cut so that others keep generating
  kv_cache:
    size: {kv_size:<21} # memory for keys and values of all requests
    tokens_per_block: 32        # tokens
    reuse: true                 # prompts that start the same share their blocks

serving:
  triton:                       # ports on 127.0.0.1; 0 takes a free one
    http_port: 8000
    grpc_port: 8001
    metrics_port: 8002
  gateway:                      # the OpenAI-compatible API
    host: 127.0.0.1
    port: 8080
"""

_GIB = 1 << 30
PROFILES = ("latency", "throughput", "balanced", "memory")


@click.command()
@click.argument("checkpoint", default="sample")
@click.option("-o", "--output", type=click.Path(path_type=Path), default="conch.yaml", show_default=True)
@click.option("--force", is_flag=True, help="Overwrite an existing file.")
@click.option("--profile", type=click.Choice(PROFILES), help="What matters most: the plan is `conch advise`'s.")
@with_console
def init(console: Console, checkpoint: str, output: Path, force: bool, profile: str | None) -> None:
    """Write a plan for CHECKPOINT: a Hugging Face directory, a hub id, a .gguf file, or `sample`."""
    from conch_build.checkpoint import peek_config
    from conch_build.plan import Model

    refuse_existing(output, force=force)
    name, written = plan_name(checkpoint), plan_path(checkpoint, output)
    if profile is None:
        text = plan_text(name, written, peek_config(Model(checkpoint=checkpoint), say=console.note))
    else:
        text = _advised(console, checkpoint, name, written, profile)
    write_plan(output, text, force=force)
    console.result({"plan": str(output), "name": name}, f"wrote {output}; next: conch check {output}")


def refuse_existing(output: Path, *, force: bool) -> None:
    """Raises InputError for a file that is there, unless forced."""
    from conch_build.errors import InputError

    if output.exists() and not force:
        raise InputError("exists already", where=str(output), fix="Use --force to overwrite it, or -o for another.")


def write_plan(output: Path, text: str, *, force: bool) -> None:
    """Write a plan file. Raises InputError where it cannot be, or is there and not forced."""
    from conch_build.errors import InputError

    refuse_existing(output, force=force)
    try:
        output.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror}", where=str(output)) from None


def _advised(console: Console, checkpoint: str, name: str, written: str, profile: str) -> str:
    """The plan that `conch advise` writes for the CPU engine with that goal."""
    from conch_build.advise.choose import advise
    from conch_build.advise.write import plan_text as advised_text
    from conch_build.commands.advise import situation_of

    return advised_text(advise(situation_of(console, checkpoint, goal=profile), name, written))


def plan_text(name: str, checkpoint: str, config: Mapping[str, Any]) -> str:
    """The plan's YAML, its limits cut to what the model (its config.json) can do."""
    max_seq_len, kv_bytes = _limits(config)
    return _TEMPLATE.format(
        name=_scalar(name),
        checkpoint=_scalar(checkpoint),
        max_seq_len=max_seq_len,
        kv_size=f"{-(-kv_bytes // _GIB)}GiB",
    )


def plan_name(checkpoint: str) -> str:
    """`org/Some Model.gguf` -> `some-model`: letters, digits, `.`, `_` and `-`, at most 64."""
    if checkpoint == "sample":
        return "smollm2"
    base = Path(checkpoint).absolute().name if checkpoint.startswith(".") else checkpoint.rstrip("/").split("/")[-1]
    name = re.sub(r"[^a-z0-9._-]+", "-", base.lower().removesuffix(".gguf"))
    return name.strip("._-")[:64] or "model"


def _limits(config: Mapping[str, Any]) -> tuple[int, int]:
    from conch_build.model_info import whole_number
    from conch_build.sizing import blocks_for, kv_bytes_per_token

    def number(key: str, default: int | None = None) -> int:
        return whole_number(config, key, default, where=Path("config.json"))

    heads = number("num_attention_heads")
    head_dim = number("head_dim", number("hidden_size") // heads)
    positions = number("max_position_embeddings")
    length = min(4096, positions)
    token = kv_bytes_per_token(number("num_hidden_layers"), number("num_key_value_heads", heads), head_dim, "u8")
    return length, max(_GIB, blocks_for(length, 32) * 32 * token)


def plan_path(checkpoint: str, output: Path) -> str:
    """A relative path is read from the plan's folder, so it is written from there."""
    path = Path(checkpoint)
    if checkpoint == "sample" or path.is_absolute() or checkpoint.startswith("~") or not path.exists():
        return checkpoint
    return f"./{os.path.relpath(path, output.absolute().parent)}"


def _scalar(value: str) -> str:
    """A YAML string: plain where that is safe."""
    plain = re.fullmatch(r"[A-Za-z./~][A-Za-z0-9._/~-]*", value)
    words = {"null", "true", "false", "yes", "no", "on", "off", "~", "y", "n"}
    return value if plain and value.lower() not in words else json.dumps(value)
