"""The one file to send back: what was found, for people, and all of it as JSON at its end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from conch.gpu_check.day import Day
from conch_build.console import table
from conch_build.units import format_bytes, format_seconds


def summary(day: Day) -> str:
    """The day in one line."""
    chats = [step for step in day.journal.steps if step.name.endswith(": chat") and not step.name.startswith("cpu")]
    tried = len(day.choice.backends) * len(day.choice.formats)
    told = list(day.machine.missing) if day.machine else []
    told += [f"{sum(step.state == 'ok' for step in chats)} of {tried} GPU engines answer"]
    told += [f"{name} agrees with the CPU on {found['share']:.0%}" for name, found in day.agreements.items()]
    told.append(f"{day.journal.count('failed')} steps failed, {day.journal.count('skipped')} were skipped")
    return "gpu-check: " + "; ".join(told)


def write(day: Day, path: Path) -> None:
    """Whole or not at all, however often it is written."""
    fresh = path.with_suffix(".tmp")
    fresh.write_text(render(day), encoding="utf-8")
    fresh.replace(path)


def render(day: Day) -> str:
    """Markdown, and everything as JSON in its last block."""
    sections = ["# Conch on a GPU machine", summary(day), "## Machine", _machine(day), "## Steps", _steps(day)]
    if day.agreements:
        sections += ["## Agreement with the CPU engine, by token", _agreements(day)]
    for step in day.journal.steps:
        if step.state == "failed":
            sections += [f"### {step.name}", step.detail, _block("\n".join(step.log_tail), "text")]
    data = json.dumps(as_dict(day), indent=1, default=str, ensure_ascii=False)
    return "\n\n".join([*sections, "## Everything", _block(data, "json")]) + "\n"


def as_dict(day: Day) -> dict[str, Any]:
    return {
        "schema": 1,
        "summary": summary(day),
        "model": day.choice.model,
        "machine": day.machine.as_dict() if day.machine else None,
        "steps": [step.as_dict() for step in day.journal.steps],
        "answers": day.answers,
        "agreements": day.agreements,
    }


def _machine(day: Day) -> str:
    machine = day.machine
    if machine is None:
        return "unknown"
    gpus = "; ".join(
        f"{gpu.name}, {format_bytes(gpu.memory_bytes)}, sm{gpu.sm}, driver {gpu.driver}" for gpu in machine.gpus
    )
    rows = [
        ("GPUs", gpus or "none"),
        ("docker", f"{machine.docker or 'none answers'}{', with NVIDIA runtime' if machine.docker_gpus else ''}"),
        ("TensorRT-LLM", machine.tensorrt_llm or "none"),
        ("tritonserver", machine.tritonserver or "none"),
        ("system", f"{machine.system}, {machine.cores} cores, {format_bytes(machine.memory_bytes)}"),
        ("free disk", format_bytes(machine.disk_free_bytes)),
        ("/dev/shm", format_bytes(machine.shared_memory_bytes)),
        ("missing", "; ".join(machine.missing) or "nothing"),
    ]
    return "\n".join(f"* {name}: {value}" for name, value in rows)


def _steps(day: Day) -> str:
    rows = [(step.name, step.state, format_seconds(step.seconds), step.detail) for step in day.journal.steps]
    return _block(table(("step", "state", "time", "why"), rows), "text")


def _agreements(day: Day) -> str:
    rows = [
        (
            name,
            f"{found['share']:.1%}",
            f"{found['same_tokens']}/{found['tokens']}",
            f"{found['equal_answers']}/{found['answers']}",
        )
        for name, found in day.agreements.items()
    ]
    return _block(table(("engine", "share", "tokens", "equal answers"), rows), "text")


def _block(text: str, kind: str) -> str:
    """A fenced block; the fence is longer than any in the text."""
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}{kind}\n{text}\n{fence}"
