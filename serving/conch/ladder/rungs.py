"""The rungs, from the ground up: each adds one layer to the rung that it stands on. Pure; builds and runs nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from conch.ladder.workload import LONGEST, LONGEST_PROMPT
from conch_build.errors import InputError, UnsupportedError
from conch_build.plan import Lora, Plan, QuantFormat, Quantization, Speculation
from conch_build.quality.gate import baseline_plan

CHUNK_TOKENS = 64
"""Of a step, from `chunked` on: a prompt that is read in parts holds up those that decode for no longer than this."""
TRANSFORMERS = {"plain": (False, False), "kv-cache": (True, False), "static": (True, True)}
"""Rungs without an engine: with a cache, in batches."""
APART, LORA = "apart", "lora"
_FORMATS: Mapping[str, QuantFormat] = {"int8": "int8", "int4": "int4_awq"}
_DRAFT_LENGTH = 4


@dataclass(frozen=True)
class Rung:
    name: str
    title: str
    over: str | None
    """The rung that it adds to."""

    @property
    def one_by_one(self) -> bool:
        return not TRANSFORMERS.get(self.name, (True, True))[1]

    @property
    def cuts_answers(self) -> bool:
        """Without a cache each token takes as long as the first: a quarter of an answer tells the pace, not its end."""
        return self.name == "plain"

    @property
    def mixes_adapters(self) -> bool:
        return self.name in (APART, LORA)


def rungs_of(plan: Plan) -> tuple[Rung, ...]:
    """All of them. What lies above the quantized rungs stands on the one that is nearer to the plan's own format."""
    kept = "int4" if plan.quantization.format == "int4_awq" else "int8"
    speculation = _speculation(plan)
    return (
        Rung("plain", "transformers, no KV cache", None),
        Rung("kv-cache", "with a KV cache", "plain"),
        Rung("static", "static batching", "kv-cache"),
        Rung("in-flight", "in-flight batching, paged KV", "static"),
        Rung("reuse", "prefix reuse", "in-flight"),
        Rung("chunked", "chunked prefill", "reuse"),
        Rung("int8", "int8 weights, u8 KV", "chunked"),
        Rung("int4", "int4 weights, u8 KV", "int8"),
        Rung("speculation", f"speculation, {speculation.method} {speculation.max_draft_len}", kept),
        Rung(APART, "adapters: an engine each", kept),
        Rung(LORA, "adapters: one engine", APART),
    )


def chosen(rungs: Sequence[Rung], names: str | None) -> tuple[Rung, ...]:
    """Those of `names`, separated by commas, in the ladder's order; None: all. Raises InputError for another name."""
    if names is None:
        return tuple(rungs)
    wanted = [name.strip() for name in names.split(",")]
    known = [rung.name for rung in rungs]
    if unknown := [name for name in wanted if name not in known]:
        raise InputError(f"no rung {unknown[0]!r}", where="--rungs", fix=f"Rungs: {', '.join(known)}.")
    return tuple(rung for rung in rungs if rung.name in wanted)


def check(plan: Plan) -> None:
    """Raise for a plan whose engine the ladder cannot climb."""
    if plan.engine.backend != "openvino":
        raise UnsupportedError(
            f"the ladder measures engines for CPUs, not `engine.backend: {plan.engine.backend}`",
            fix="Measure servers on GPUs by `conch bench` and `conch bench compare`.",
        )
    if plan.engine.max_seq_len < LONGEST:
        raise InputError(
            f"holds {plan.engine.max_seq_len} tokens of a request, and the ladder asks for {LONGEST}",
            where="engine.max_seq_len",
            fix="Allow more.",
        )


def plan_of(rung: Rung, plan: Plan, adapters: Mapping[str, str]) -> Plan:
    """The plan whose engine has the layers up to `rung` and none above. `adapters`: name -> folder."""
    names = [each.name for each in rungs_of(plan)]
    at = names.index(rung.name)
    engine = plan.engine
    chunked = at >= names.index("chunked")
    widest = max(engine.max_num_tokens, LONGEST_PROMPT + engine.max_batch_size)
    cache = engine.kv_cache.model_copy(update={"reuse": at >= names.index("reuse")})
    engine = engine.model_copy(
        update={
            "kv_cache": cache,
            "chunked_prefill": chunked,
            "max_num_tokens": CHUNK_TOKENS if chunked else widest,
            "speculation": _speculation(plan) if rung.name == "speculation" else Speculation(),
            "lora": _lora(plan, adapters) if rung.mixes_adapters else Lora(),
        }
    )
    return plan.model_copy(update={"engine": engine, "quantization": _quantization(rung, plan)})


def _quantization(rung: Rung, plan: Plan) -> Quantization:
    if rung.name in _FORMATS:
        wanted = _FORMATS[rung.name]
    elif rung.name in ("speculation", APART, LORA):
        wanted = "int4_awq" if plan.quantization.format == "int4_awq" else "int8"
    else:
        return baseline_plan(plan).quantization
    return plan.quantization.model_copy(update={"format": wanted, "kv_cache": "auto"})


def _speculation(plan: Plan) -> Speculation:
    """The plan's own, else n-grams, which need no second model."""
    own = plan.engine.speculation
    return own if own.method != "none" else Speculation(method="ngram", max_draft_len=_DRAFT_LENGTH)


def _lora(plan: Plan, adapters: Mapping[str, str]) -> Lora:
    return plan.engine.lora.model_copy(update={"adapters": dict(adapters), "max_loaded": len(adapters)})
