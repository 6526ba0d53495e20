"""The report of `conch size` for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from conch_build.console import table
from conch_build.size.fleet import Choice
from conch_build.units import format_bytes, format_seconds

_PAGES = {
    "full": "the engine keeps every page",
    "window": "the engine gives pages behind the window back",
}


def cache_text(kv: Mapping[str, Any]) -> str:
    lines = [
        f"KV cache in {kv['dtype']}: {kv['bytes_per_token']:,} bytes a token, "
        f"{kv['block_bytes']:,} a block of {kv['tokens_per_block']}",
        f"  {kv['requests']:,} requests of {kv['request_tokens']:,} tokens: {kv['blocks']:,} blocks, "
        f"{format_bytes(kv['bytes'])} ({kv['bytes']:,} bytes)",
    ]
    if windows := kv["windows"]:
        full, cut = windows["bytes_a_request_full"], windows["bytes_a_request_window"]
        lines += [
            f"  past its window {windows['bytes_per_token_past_windows']:,} bytes a token and "
            f"{windows['window_bytes']:,} bytes; with full pages {kv['bytes_per_token']:,} bytes a token",
            f"  a request: {format_bytes(cut)} by windows, {format_bytes(full)} with full pages; "
            f"here {_PAGES[kv['pages']]}",
        ]
    return "\n".join(lines)


def report_text(report: Mapping[str, Any]) -> str:
    return "\n\n".join(
        [
            _model(report["model"], report["format"]),
            cache_text(report["kv"]),
            _memory(report),
            *([_limits(report)] if report["limits"] else []),
        ]
    )


def choices_text(found: Sequence[Choice]) -> str:
    if not found:
        return "No GPU of the table holds it, even eight together: quantize it, or shorten its requests."
    rows = [
        (
            choice.gpu,
            choice.gpus,
            f"{choice.tensor} x {choice.replicas}",
            f"{choice.requests_each:,}",
            format_bytes(choice.memory_bytes),
            format_seconds(choice.prefill_seconds),
            format_seconds(choice.step_seconds),
            f"{choice.decode_tokens_s:,.0f}",
        )
        for choice in found
    ]
    heads = ("GPU", "GPUs", "tensor x replicas", "requests each", "memory", "prompt", "step", "tok/s")
    note = "prompt, step and tok/s are what bandwidth and arithmetic allow at most"
    return f"{table(heads, rows)}\n{note}"


def _model(model: Mapping[str, Any], form: str) -> str:
    active = f", {model['active_parameters']:,} of them for a token" if model["experts"] else ""
    tied = ", head and embedding one" if model["tied_embeddings"] else ""
    window = ""
    if model["window"]:
        window = f", {model['window_layers']} of them look back {model['window']:,} tokens"
    heads = f"{model['heads']} heads, {model['kv_heads']} KV heads of {model['head_dim']}"
    return (
        f"{model['architecture']}: {model['parameters']:,} parameters{active}{tied}; weights in {form}\n"
        f"  {model['layers']} layers{window}; {model['attention'].upper()}: {heads}"
    )


def _memory(report: Mapping[str, Any]) -> str:
    memory, gpu = report["memory"], report["gpu"]
    head = f"This machine: {format_bytes(memory['total_bytes'])}"
    if gpu:
        many = f"{gpu['gpus']} x " if gpu["gpus"] > 1 else ""
        spread = f" (tensor {gpu['tensor']}, pipeline {gpu['pipeline']}, replicas {gpu['replicas']}), each"
        head = f"{many}{gpu['label']}{spread if gpu['gpus'] > 1 else ''} {format_bytes(memory['total_bytes'])}"
    rows = [(f"  {name}", format_bytes(size), f"{size:,}") for name, size in memory["parts"].items()]
    together = "together" if gpu or memory["replicas"] == 1 else f"together, of {memory['replicas']} replicas"
    rows.append((f"  {together}", format_bytes(memory["used_bytes"]), f"{memory['used_bytes']:,}"))
    body = table((head, "", "bytes"), rows)
    verdict = "" if memory["used_bytes"] <= memory["total_bytes"] else "\n  It does not fit."
    wanted, each = report["kv"]["requests"], report["kv"]["request_tokens"]
    replicas = memory["replicas"]
    held = memory["requests"] * replicas
    enough = "enough for" if held >= wanted else "too few for"
    return (
        f"{body}{verdict}\n  {memory['kv_blocks']:,} blocks, {memory['kv_tokens']:,} tokens: {held:,} requests of "
        f"{each:,} at once{' on all replicas' if replicas > 1 else ''}, {enough} {wanted:,}"
    )


def _limits(report: Mapping[str, Any]) -> str:
    found = report["limits"]
    return (
        "At most, by bandwidth and arithmetic of a replica\n"
        f"  prompts {found['prefill_tokens_s']:,.0f} tok/s, one in {format_seconds(found['prefill_seconds'])} "
        f"(by {found['prefill_bound']})\n"
        f"  answers {found['decode_tokens_s']:,.0f} tok/s, a step in {format_seconds(found['step_seconds'])} "
        f"(by {found['step_bound']}): {found['request_tokens_s']:,.1f} tok/s a request"
    )
