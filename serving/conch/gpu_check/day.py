"""The day's steps in their order: the machine, the CPU's answers, then the chain from plan to chat on each backend."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conch.gpu_check.facts import release_facts
from conch.gpu_check.journal import Journal, run, tail
from conch.gpu_check.machine import Machine, Means, look
from conch.gpu_check.plans import cpu_plan, gpu_plan
from conch.gpu_check.questions import QUESTIONS, TEXTS, TokenIds, ask, ask_ensemble, ask_streaming, compare
from conch.gpu_check.server import Stack, serve_here, serve_in_containers
from conch_build.errors import ServiceError
from conch_build.plan import load_plan
from conch_build.profiles import container_of

_MINUTE = 60.0
_MATCH_SHARE = 0.25
"""Two right engines agree on more of a greedy answer than this, however their arithmetic rounds."""


@dataclass(frozen=True)
class Choice:
    """What is tried. `conch`: the command, `gpu_conch`: the one whose Python has TensorRT-LLM."""

    model: str
    backends: tuple[str, ...]
    formats: tuple[str, ...]
    conch: tuple[str, ...]
    gpu_conch: tuple[str, ...]
    python: str
    compares: bool
    """Whether the CPU engine is asked, too."""


class Day:
    """One run. What it has found so far is in `journal`, `machine`, `answers` and `agreements`."""

    def __init__(self, choice: Choice, folder: Path, say: Callable[[str], None], changed: Callable[[], None]) -> None:
        self.choice = choice
        self.folder = folder
        self.journal = Journal(folder, say, changed)
        self.machine: Machine | None = None
        self.answers: dict[str, list[dict[str, Any]]] = {}
        self.agreements: dict[str, dict[str, Any]] = {}
        self._tokenizer: Path | None = None
        self._asked: set[str] = set()

    def run(self) -> None:
        """All of it. Nothing is raised but KeyboardInterrupt."""
        self.machine = self.journal.step("machine", lambda log: look(self.choice.python), Machine.as_dict)
        self.journal.step("versions", lambda log: _versions(self.choice, log))
        self.journal.step("doctor", lambda log: json.loads(_doctor(self.choice.conch, log)))
        if self.choice.compares:
            self._cpu()
        for backend in self.choice.backends:
            for quantization in self.choice.formats:
                self._backend(backend, quantization)

    def _cpu(self) -> None:
        plan = self.folder / "cpu.yaml"
        plan.write_text(cpu_plan(self.choice.model))
        built = self.journal.step("cpu: build", lambda log: _build(self.choice.conch, plan, log, 60 * _MINUTE))
        if built is None:
            self.journal.skip("cpu: answers", "there is no engine; GPU answers are compared with none")
            return
        self._tokenizer = Path(built["artifacts"]["engine"]["path"]) / "tokenizer"
        self._questions("cpu", lambda log: serve_here(self.choice.conch, plan, log, seconds=10 * _MINUTE))

    def _backend(self, backend: str, quantization: str) -> None:
        name = f"{backend} {quantization}"
        machine, conch = self.machine, self.choice.gpu_conch
        if machine is None or machine.means is None:
            self.journal.skip(name, "; ".join(machine.missing) if machine else "the machine is not known")
            return
        means = machine.means
        if means == "host" and backend == "tensorrt" and not machine.cpp_backend:
            self.journal.skip(name, "this tritonserver has no backend `tensorrtllm`")
            return
        plan = self.folder / f"{backend}-{quantization}.yaml"

        def write(log: Path) -> str:
            plan.write_text(gpu_plan(self.choice.model, backend, quantization, machine.gpus[0], means))
            return plan.read_text()

        steps: list[tuple[str, Callable[[Path], Any]]] = [
            ("plan", write),
            ("check", lambda log: run([*conch, "check", str(plan), "--json"], log, seconds=20 * _MINUTE)),
            ("release", lambda log: self._facts(means, plan, log)),
            ("dry run", lambda log: run([*conch, "build", str(plan), "--dry-run"], log, seconds=5 * _MINUTE)),
            ("build", lambda log: _build(conch, plan, log, 6 * 60 * _MINUTE)),
        ]
        for what, work in steps:
            done = self.journal.step(f"{name}: {what}", work)
            if done is None and what in ("plan", "build"):
                self.journal.skip(f"{name}: chat", f"its {what} failed")
                return

        def serve(log: Path) -> Stack:
            if means == "host":
                return serve_here(conch, plan, log, seconds=60 * _MINUTE)
            folder = self.folder / f"{backend}-{quantization}"
            return serve_in_containers(conch, plan, folder, log, seconds=60 * _MINUTE)

        self._questions(name, serve)

    def _facts(self, means: Means, plan: Path, log: Path) -> str:
        """Of each image once."""
        image = container_of(load_plan(plan))
        if image in self._asked:
            return f"{image}: as above"
        self._asked.add(image)
        return release_facts(means, image, log)

    def _questions(self, name: str, serve: Callable[[Path], Stack]) -> None:
        """Serve, ask everything, measure a little, stop."""
        stack = self.journal.step(f"{name}: serve", serve, lambda stack: stack.url)
        if stack is None:
            self.journal.skip(f"{name}: chat", "nothing is served")
            return
        url, triton = stack.url, stack.triton
        try:
            answers = self.journal.step(f"{name}: chat", lambda log: [ask(url, question) for question in QUESTIONS])
            self.journal.step(f"{name}: streams", lambda log: _streams(url, answers))
            texts = self.journal.step(f"{name}: ensemble", lambda log: [ask_ensemble(triton, text) for text in TEXTS])
            self.journal.step(f"{name}: triton", lambda log: _triton(triton))
            bench = [*self.choice.conch, "bench", "--url", url, "--concurrency", "1,8", "--max-tokens", "64", "--json"]
            self.journal.step(f"{name}: bench", lambda log: json.loads(run(bench, log, seconds=30 * _MINUTE)))
        finally:
            self.journal.step(f"{name}: stop", lambda log: _stopped(stack, log))
        for way, given in (("chat", answers), ("ensemble", texts)):
            if given is not None:
                self.answers[f"{name}: {way}"] = given
                self._compare(name, way)

    def _compare(self, name: str, way: str) -> None:
        ours, theirs, tokenizer = self.answers.get(f"cpu: {way}"), self.answers[f"{name}: {way}"], self._tokenizer
        if name == "cpu":
            return
        if ours is None or tokenizer is None:
            self.journal.skip(f"{name}: agreement of {way}", "the CPU engine gave no answers")
            return

        def work(log: Path) -> dict[str, Any]:
            found = self.agreements[f"{name}: {way}"] = compare(ours, theirs, TokenIds(tokenizer))
            if found["share"] < _MATCH_SHARE:
                raise ServiceError(
                    f"only {found['same_tokens']} of {found['tokens']} tokens are those of the CPU engine: "
                    "the weights, the chat template or the end tokens differ"
                )
            return found

        self.journal.step(f"{name}: agreement of {way}", work)


def _build(conch: Sequence[str], plan: Path, log: Path, seconds: float) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(run([*conch, "build", str(plan), "--json"], log, seconds=seconds))
    return result


def _versions(choice: Choice, log: Path) -> str:
    shown = run([*choice.conch, "--version"], log, seconds=_MINUTE)
    return shown + run([choice.python, "-m", "pip", "list"], log, seconds=2 * _MINUTE)


def _doctor(conch: Sequence[str], log: Path) -> str:
    """It exits with 4 where something is missing: that is a finding here, not a failure."""
    return run(["sh", "-c", '"$@" || test $? -eq 4', "sh", *conch, "doctor", "--json"], log, seconds=2 * _MINUTE)


def _streams(url: str, answers: list[dict[str, Any]] | None) -> list[dict[str, Any]]:
    """The same questions as streams; their texts must be those of whole answers."""
    streams = [ask_streaming(url, question) for question in QUESTIONS]
    wrong = [
        number
        for number, (stream, answer) in enumerate(zip(streams, answers or (), strict=False))
        if stream["text"] != answer["text"]
    ]
    if wrong:
        raise ServiceError(f"as streams, the answers {wrong} are others than whole")
    return streams


def _stopped(stack: Stack, log: Path) -> dict[str, list[str]]:
    """The ends of all logs of a stack that is stopped."""
    stack.stop(log)
    return {path.name: tail(path) for path in (*stack.logs, log)}


def _triton(url: str) -> dict[str, Any]:
    """What the server tells of its models."""
    found: dict[str, Any] = {}
    for path in ("v2", "v2/models/tensorrt_llm", "v2/models/tensorrt_llm/config", "v2/models/tensorrt_llm/stats"):
        with urllib.request.urlopen(f"{url}/{path}", timeout=30) as response:
            found[path] = json.loads(response.read())
    return found
