"""Key by key, the first row of the table that holds and whose plan preflight does not refuse.

What was tried before it and refused is kept with the reason. A plan that comes out of this passes `conch check`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import yaml

from conch_build.advise.rules import TABLE, Row
from conch_build.advise.situation import Situation
from conch_build.errors import InputError
from conch_build.gpu.cards import gpu_of
from conch_build.plan import Plan, parse_plan
from conch_build.preflight import Facts, Violation
from conch_build.preflight.registry import find
from conch_build.profiles import profile_for

Data = dict[str, Any]

_NODE = 8


@dataclass(frozen=True)
class Choice:
    key: str
    value: Any
    why: str
    excludes: str
    refused: tuple[str, ...] = ()
    """What came before it in the table and cannot be, with the reason."""


@dataclass(frozen=True)
class Advice:
    data: Data
    """The plan, as nested mappings."""
    choices: tuple[Choice, ...]

    @property
    def plan(self) -> Plan:
        return _parsed(self.data)


def advise(situation: Situation, name: str, checkpoint: str) -> Advice:
    """Raises InputError where no row's plan can work: the model does not fit."""
    # The length from the start: the default one may be more than the model has positions for.
    data: Data = {"name": name, "model": {"checkpoint": checkpoint}, "engine": {"max_seq_len": situation.tokens}}
    if situation.gpu is not None:
        data["target"] = {"gpu": situation.gpu.name}
        if situation.gpus > _NODE:
            raise InputError(f"advice is for one node of up to {_NODE} GPUs, not {situation.gpus}", where="--gpus")
    choices: list[Choice] = []
    for key in dict.fromkeys(row.key for row in TABLE):
        rows = [row for row in TABLE if row.key == key and row.holds(situation)]
        if rows:
            data, choice = _first(situation, data, rows)
            choices.append(choice)
    return Advice(data, tuple(choices))


def _first(situation: Situation, data: Data, rows: list[Row]) -> tuple[Data, Choice]:
    refused: list[str] = []
    last: Violation | None = None
    for row in rows:
        for value in row.values(situation, _parsed(data)):
            trial = changed(data, row.key, value)
            last = _refusal(situation, trial)
            if last is None:
                return trial, Choice(row.key, value, row.why, row.excludes, tuple(refused))
            refused.append(f"{value}: {last.message}")
    assert last is not None
    raise InputError(f"no plan fits this machine: {last.message}", where=row.key, fix=last.fix)


def changed(data: Data, key: str, value: Any) -> Data:
    """The same with another value at a dotted key."""
    name, _, rest = key.partition(".")
    return {**data, name: changed(data.get(name, {}), rest, value) if rest else value}


def _refusal(situation: Situation, data: Data) -> Violation | None:
    """The first error of preflight; while it is open how many GPUs the model is spread over, of the widest."""
    engine = data.get("engine", {})
    open_to = (1, 2, 4, 8) if situation.gpu is not None and "parallel" not in engine else (None,)
    first: Violation | None = None
    for tensor in open_to:
        if tensor is not None and tensor > situation.gpus:
            break
        spread = data if tensor is None else changed(data, "engine.parallel.tensor", tensor)
        first = _first_error(situation, spread)
        if first is None:
            return None
    return first


def _first_error(situation: Situation, data: Data) -> Violation | None:
    plan = _parsed(data)
    profile = gpu = None
    if situation.gpu is not None and plan.engine.backend != "openvino":
        profile, gpu = profile_for(plan), gpu_of(plan)
        if (used := plan.engine.parallel.tensor * plan.serving.triton.instances) > situation.gpus:
            return Violation("serving.triton.instances", f"{used} GPUs are needed, of {situation.gpus}", "Use fewer.")
    facts = Facts(plan, situation.checkpoint, None, profile, gpu).known()
    open_rules = _open_rules(data)
    errors = (found for found in find(facts, plan.engine.backend) if found.severity == "error")
    return next((found for found in errors if not found.rule.startswith(open_rules)), None)


def _open_rules(data: Data) -> tuple[str, ...]:
    """Rules that later rows decide: whether it fits, before the format is chosen, and the pool before its size is."""
    memory = () if "quantization" in data else ("memory.", "limits.memory")
    return memory if "kv_cache" in data.get("engine", {}) else (*memory, "limits.kv-pool")


def _parsed(data: Data) -> Plan:
    return parse_plan(yaml.safe_dump(data), source="advice")
