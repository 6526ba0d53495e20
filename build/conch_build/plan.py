"""The plan: one YAML file that says what to build and how to serve it.

Frozen models with TensorRT-LLM's names; unknown keys are refused with the nearest known one. A plan that
loads is well-formed; whether it can *work* is for `preflight`.
"""

from __future__ import annotations

import contextlib
import difflib
import re
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, Field, ValidationError, model_validator

from conch_build.errors import PlanError
from conch_build.files import expanded
from conch_build.plan_gateway import Gateway
from conch_build.plan_parts import INT32, Count, Gpus, Part, Place, Port
from conch_build.plan_quality import Quality
from conch_build.units import ByteSize, Duration

_UNREADABLE = re.compile("[\\x00-\\x08\\x0b-\\x1f\\x7f\\ud800-\\udfff]")

QuantFormat = Literal["none", "int8", "int8_sq", "int4_awq", "fp8", "nvfp4", "w4a8_awq"]
Backend = Literal["openvino", "tensorrt", "pytorch"]


class Target(Part):
    gpu: str | None = None
    """The GPU that the engine will run on, as `h100`; the backends `tensorrt` and `pytorch` need it."""
    gpus_per_node: Gpus = 8
    tensorrt_llm: str = "auto"
    """Release of TensorRT-LLM, as `1.2.1`. `auto`: the one that is installed, else the last that has the backend."""
    container: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/:@-]{0,254}$")] = "auto"
    """Image in which engines are built and served. `auto`: the newest one with that release."""


class Model(Part):
    checkpoint: Place
    """A local Hugging Face directory, a hub id, a `.gguf` file, or `sample`."""
    revision: str | None = None
    """Branch, tag or commit of a hub id."""
    trust_remote_code: bool = False
    """Allow Python code from the checkpoint to run. Recorded in the artifact."""
    allow_pickle: bool = False
    """Convert `.bin` weights to safetensors. Unpickling can run code: only for files you trust."""


class Calibration(Part):
    data: Place = "builtin"
    """`builtin`, `self` (the model's own generations), or a `.txt`/`.jsonl` file."""
    samples: Count = 64
    max_length: Count = 512
    """Tokens kept of each sample."""


class Quantization(Part):
    format: QuantFormat = "none"
    group_size: Literal["auto"] | Count = "auto"
    """Weights that share a scale (int4_awq). `auto`: the largest of 128, 64, 32, 16 that fits each width."""
    kv_cache: Literal["auto", "u8", "bf16", "f32", "fp16", "fp8", "int8", "nvfp4"] = "auto"
    """Type of the cached keys and values. `auto`: u8 on CPUs, fp8 beside fp8 and nvfp4 weights, else 16 bits."""
    calibration: Calibration = Calibration()


class KvCache(Part):
    size: ByteSize = 1 << 30
    """Or, instead of a size:"""
    free_memory_fraction: Annotated[float, Field(gt=0, lt=1)] | None = None
    """So much of the memory that is free when the engine is loaded."""
    concurrency: Count | None = None
    """What so many requests of `max_seq_len` tokens need."""
    tokens_per_block: Count = 32
    reuse: bool = True
    """Keep the blocks of finished prompts and share them with requests that start the same."""

    @model_validator(mode="after")
    def _one_size(self) -> KvCache:
        given = [name for name in ("size", "free_memory_fraction", "concurrency") if name in self.model_fields_set]
        if len(given) > 1:
            raise ValueError(f"its size is given twice, by {' and '.join(given)}: leave one")
        return self


class Parallel(Part):
    tensor: Gpus = 1
    pipeline: Gpus = 1
    expert: Gpus = 1
    """Of a mixture of experts: its experts are spread over so many of the `tensor` GPUs."""


class Speculation(Part):
    method: Literal["none", "draft", "ngram", "eagle3", "mtp", "medusa", "lookahead"] = "none"
    checkpoint: Place | None = None
    """Of the draft model, EAGLE-3 head or Medusa heads; `conch draft` makes a draft."""
    max_draft_len: Count = 4
    """Tokens guessed at most, to be verified in one step."""
    max_matching_ngram_size: Count = 3
    """ngram: the last tokens, so many and then fewer, are sought in what came before."""


class Lora(Part):
    max_rank: Count = 16
    """Largest rank that an adapter may have; memory and time of a slot grow with it."""
    max_loaded: Count = 4
    """Adapters that are in memory at once; the one that was not used for longest makes room."""
    adapters: dict[str, Place] = Field(default_factory=dict)
    """Name -> PEFT directory. Requests choose one by its name as their model."""
    target_modules: list[str] | None = None
    """TensorRT-LLM's names (`attn_q`, ...). None: those of the adapters."""


class Engine(Part):
    backend: Backend = "openvino"
    precision: Literal["auto", "bf16", "fp16", "f32"] = "auto"
    """Arithmetic of activations. `auto`: bf16 where the CPU has it; the checkpoint's own type on GPUs."""
    threads: Literal["auto"] | Count = "auto"
    max_batch_size: Count = 64
    max_num_tokens: Count = 2048
    """Tokens of one step, prompts and decoding together."""
    max_seq_len: Annotated[Count, Field(ge=2)] = 4096
    """Tokens of one request, prompt and answer together."""
    max_queue_size: Count = 1024
    """Requests that may wait; more are refused."""
    chunked_prefill: bool = True
    stream_interval: Count = 1
    """Tokens of a stream that are sent together, but for the first: more cost less where many streams run at once."""
    kv_cache: KvCache = KvCache()
    parallel: Parallel = Parallel()
    speculation: Speculation = Speculation()
    lora: Lora = Lora()
    build_args: dict[str, str | int | bool] = Field(default_factory=dict)
    """tensorrt: further flags of `trtllm-build`, without their dashes: `{gemm_plugin: fp8}`."""
    llm_args: dict[str, Any] = Field(default_factory=dict)
    """pytorch: further arguments of TensorRT-LLM's LLM API: `{cuda_graph_config: {enable_padding: true}}`."""


class Triton(Part):
    layout: Literal["auto", "tokens", "ensemble", "llmapi"] = "auto"
    """`tokens`: token ids only. `ensemble`: text models around it. `auto`: ensemble."""
    http_port: Port = 8000
    grpc_port: Port = 8001
    metrics_port: Port = 8002
    instances: Gpus = 1
    """Engines beside each other on one node, each with GPUs of its own."""
    launch: Literal["leader", "orchestrator"] = "leader"
    """tensorrt: one server a rank, or one that spawns its workers."""


class Workers(Part):
    instances: Gpus = 1
    tensor: Gpus = 1
    pipeline: Gpus = 1
    llm_args: dict[str, Any] = Field(default_factory=dict)
    """Arguments of the LLM API for these workers alone."""


class Disaggregated(Part):
    context: Workers = Workers()
    """Workers that read prompts."""
    generation: Workers = Workers()
    """Workers that write answers."""
    router: Literal["round_robin", "load_balancing", "kv_cache_aware"] = "round_robin"
    max_local_prefill_length: Annotated[int, Field(ge=0, le=INT32, strict=True)] = 0
    """Prompts up to so many tokens are read by the generation workers themselves."""
    port: Port = 8000
    """Of the proxy."""
    hosts: list[str] = Field(default_factory=lambda: ["localhost"])
    """Machines that the workers are spread over, in order."""


class Serving(Part):
    replicas: Gpus = 1
    """Tritons beside each other on one machine, each with CPUs or GPUs of its own, behind one gateway."""
    triton: Triton = Triton()
    gateway: Gateway = Gateway()
    disaggregated: Disaggregated | None = None
    """Prompts and answers on workers of their own. pytorch: `trtllm-serve` behind a proxy; openvino: Tritons."""


class Slo(Part):
    ttft_p95: Duration | None = None
    itl_p95: Duration | None = None


class Cost(Part):
    instance_hourly_usd: Annotated[float, Field(ge=0)] | None = None


class Plan(Part):
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
    """The model's name in the gateway."""
    model: Model
    target: Target = Target()
    quantization: Quantization = Quantization()
    engine: Engine = Engine()
    quality: Quality = Quality()
    serving: Serving = Serving()
    slo: Slo = Slo()
    cost: Cost = Cost()

    @property
    def cluster(self) -> Disaggregated | None:
        """Workers that `trtllm-serve` runs, without Triton; a CPU's are Tritons like any other."""
        return None if self.engine.backend == "openvino" else self.serving.disaggregated


def load_plan(path: str | Path) -> Plan:
    """Read a plan file; relative paths in it are taken from the file's own folder.

    Raises PlanError with every problem at once: file, key, what is wrong, the nearest known key.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise PlanError("no such plan file", where=str(path), fix="`conch init` writes one.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise PlanError(f"cannot be read: {error}", where=str(path)) from None
    return parse_plan(text, source=str(path), folder=path.parent)


def parse_plan(text: str, *, source: str = "plan", folder: Path | None = None) -> Plan:
    """Read a plan from YAML text. Raises PlanError, which names `source`."""
    try:
        data = yaml.load(text, Loader=_UniqueKeyLoader)
    except RecursionError:
        raise PlanError("is not YAML that can be read: it is nested too deeply", where=source) from None
    except yaml.YAMLError as error:
        raise PlanError(f"is not YAML: {_one_line(error)}", where=source) from None
    except ValueError as error:  # a date that there is not, a number of thousands of digits
        raise PlanError(f"holds a value that cannot be read: {error}", where=source) from None
    if not isinstance(data, dict):
        what = "must be a YAML mapping with `name` and `model`"
        raise PlanError(what, where=source, fix="`conch init` writes one.")
    try:
        plan = Plan.model_validate(data)
    except ValidationError as error:
        raise PlanError("; ".join(_describe(error)), where=source) from None
    return plan if folder is None else _anchored(plan, folder)


def plan_of_draft(plan: Plan) -> Plan | None:
    """The plan that would build the draft model of `plan` alone; None if it has none."""
    speculation = plan.engine.speculation
    if speculation.method != "draft" or speculation.checkpoint is None:
        return None
    model = Model(checkpoint=speculation.checkpoint)
    engine = plan.engine.model_copy(update={"speculation": Speculation(), "lora": Lora()})
    return plan.model_copy(update={"model": model, "engine": engine})


def plan_schema() -> dict[str, Any]:
    """The plan's JSON Schema, for editors."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **Plan.model_json_schema()}


class _UniqueKeyLoader(yaml.SafeLoader):
    """YAML that refuses a key written twice, whose first value would be lost in silence, and text that no file, command
    or terminal can take."""

    def construct_scalar(self, node: yaml.ScalarNode | yaml.MappingNode) -> Any:
        value = super().construct_scalar(node)
        if isinstance(value, str) and (found := _UNREADABLE.search(value)):
            raise yaml.MarkedYAMLError(None, None, f"{found[0]!r} is no character of text", node.start_mark)
        return value

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str):
                raise yaml.MarkedYAMLError(None, None, f"key {key!r} is not text", key_node.start_mark)
            if key in seen:
                raise yaml.MarkedYAMLError(None, None, f"key {key!r} is written twice", key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)


def _one_line(error: yaml.YAMLError) -> str:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark:
        return f"{error.problem} (line {error.problem_mark.line + 1}, column {error.problem_mark.column + 1})"
    return " ".join(str(error).split())


def _describe(error: ValidationError) -> Iterator[str]:
    """One sentence a key. A union's alternatives (`auto` or a number) fail one by one and are told as one."""
    by_key: dict[str, list[Any]] = {}
    for problem in error.errors(include_url=False):
        by_key.setdefault(".".join(_plan_location(problem)), []).append(problem)
    for key, problems in by_key.items():
        first = problems[0]
        if first["type"] == "extra_forbidden":
            yield f"`{key}` is not a key of the plan; {_nearest(first['loc'])}"
        elif first["type"] == "missing":
            yield f"`{key}` is missing"
        elif first["type"] == "model_type":
            yield f"`{key}` is a mapping: {_key_for(first['loc'], first['input'])}"
        elif first["type"] == "value_error":
            yield f"`{key}`: {first['msg'].removeprefix('Value error, ')}"
        else:
            demands = " or ".join(_demand(problem) for problem in problems).replace(" or must be ", " or ")
            yield f"`{key}` {demands} (given: {first['input']!r})"


def _plan_location(problem: Any) -> Iterator[str]:
    """The keys as written in the plan: pydantic appends which of a union's alternatives failed."""
    part: type[BaseModel] = Plan
    names = iter(problem["loc"])
    for name in names:
        yield str(name)
        field = part.model_fields.get(str(name))
        if field is None:
            return
        inner = _part_in(field.annotation)
        if typing.get_origin(field.annotation) is dict:
            yield from map(str, names)
        elif inner is not None:
            part = inner
        else:
            return


def _demand(problem: Any) -> str:
    message: str = problem["msg"].replace("Input should be", "must be")
    return message[0].lower() + message[1:]


def _nearest(location: tuple[Any, ...]) -> str:
    part = _part_at(location[:-1])
    known = list(part.model_fields if part else ())
    near = difflib.get_close_matches(str(location[-1]), known, n=1, cutoff=0.5)
    return f"did you mean `{near[0]}`?" if near else f"known keys: {', '.join(known)}"


def _key_for(location: tuple[Any, ...], value: Any) -> str:
    """Where a value belongs that was written in a mapping's place: its first key that takes such a value."""
    part = _part_at(location) or Plan
    for name in part.model_fields if isinstance(value, (str, int, float)) else ():
        with contextlib.suppress(ValidationError):
            part.model_validate({name: value})
            return f"write `{name}: {value}` under it"
    return f"its keys are {', '.join(part.model_fields)}"


def _part_at(location: tuple[Any, ...]) -> type[BaseModel] | None:
    """The part of the plan at a location; None where its keys are free."""
    part: type[BaseModel] = Plan
    for name in location:
        inner = _part_in(part.model_fields[str(name)].annotation)
        if inner is None:
            return None
        part = inner
    return part


def _part_in(annotation: Any) -> type[BaseModel] | None:
    """The part of the plan that a key holds, also where it may be left empty; None: it holds none."""
    for kind in (annotation, *typing.get_args(annotation)):
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            return kind
    return None


def _anchored(plan: Plan, folder: Path) -> Plan:
    """Paths in the plan made absolute: they are written from the plan's own folder."""

    def here(value: str) -> str:
        return str((folder / expanded(value)).absolute())

    def anchor(value: str) -> str:
        looks_local = value.startswith((".", "/", "~")) or Path(here(value)).exists()
        return here(value) if looks_local else value

    model = plan.model.model_copy(update={"checkpoint": anchor(plan.model.checkpoint)})
    if plan.model.checkpoint == "sample":
        model = plan.model
    data = plan.quantization.calibration.data
    if data not in ("builtin", "self"):
        calibration = plan.quantization.calibration.model_copy(update={"data": here(data)})
        quantization = plan.quantization.model_copy(update={"calibration": calibration})
    else:
        quantization = plan.quantization
    speculation = plan.engine.speculation
    if speculation.checkpoint is not None:
        speculation = speculation.model_copy(update={"checkpoint": anchor(speculation.checkpoint)})
    lora = plan.engine.lora.model_copy(
        update={"adapters": {name: here(path) for name, path in plan.engine.lora.adapters.items()}}
    )
    engine = plan.engine.model_copy(update={"lora": lora, "speculation": speculation})
    gateway = plan.serving.gateway
    tls = gateway.tls.model_copy(update={name: here(path) for name, path in gateway.tls if path})
    log = gateway.access_log if gateway.access_log in ("off", "stdout") else here(gateway.access_log)
    models = {name: served.anchored(here) for name, served in gateway.models.items()}
    gateway = gateway.model_copy(update={"tls": tls, "access_log": log, "models": models})
    serving = plan.serving.model_copy(update={"gateway": gateway})
    quality = plan.quality
    files = {"text": quality.text if quality.text == "builtin" else here(quality.text)}
    places = {"tasks": quality.tasks and here(quality.tasks), "baseline": quality.baseline and anchor(quality.baseline)}
    quality = quality.model_copy(update={**files, **places})
    return plan.model_copy(
        update={
            "model": model,
            "quantization": quantization,
            "engine": engine,
            "quality": quality,
            "serving": serving,
        }
    )


QUANT_FORMATS: tuple[str, ...] = typing.get_args(QuantFormat)
