"""LoRA adapters at Triton's door: chosen by id, ordered about by name of the order, never by a path."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conch.backend.adapters import Command, carry_out, decode_command
from conch.backend.metrics import samples, totals
from conch.backend.tensors import decode_call
from conch_build.errors import NotFoundError, RequestError
from tests.engine.conftest import ask
from tests.engine.test_adapters import request
from tests.engine.toy_adapters import Toy

NAMES = {1: "french", 2: "legal"}


def tensors(**values: Any) -> dict[str, np.ndarray]:
    prompt = {"input_ids": np.array([[5, 6, 7]], np.int32)}
    sizes = {name: np.array([[3]], np.int32) for name in ("input_lengths", "request_output_len")}
    return {**prompt, **sizes, **values}


def task(number: int) -> dict[str, np.ndarray]:
    return {"lora_task_id": np.array([[number]], np.uint64)}


def order(action: str, **values: Any) -> Command | None:
    return decode_command(tensors(conch_adapter_command=np.array([[action.encode()]], np.object_), **values), NAMES)


@pytest.fixture
def toy(tmp_path: Path) -> Iterator[Toy]:
    toy = Toy(tmp_path, "ab", slots=1)
    yield toy
    toy.engine.close()


@pytest.mark.parametrize(("number", "name"), [(0, None), (1, "french"), (2, "legal")])
def test_a_task_id_is_an_adapter_s_and_zero_is_the_model_itself(number: int, name: str | None) -> None:
    assert decode_call(tensors(**task(number)), request_id="r", adapters=NAMES).request.adapter == name
    assert decode_call(tensors(), request_id="r", adapters=NAMES).request.adapter is None


@pytest.mark.parametrize(("adapters", "fix"), [(NAMES, "There are 1, 2."), ({}, "The plan names none.")])
def test_an_id_that_nobody_has_is_not_found(adapters: dict[int, str], fix: str) -> None:
    with pytest.raises(NotFoundError, match="no adapter has the id 3") as caught:
        decode_call(tensors(**task(3)), request_id="r", adapters=adapters)
    assert (caught.value.param, caught.value.fix) == ("lora_task_id", fix)


def test_orders_name_their_adapter_by_id() -> None:
    assert order("load", **task(2)) == Command("load", "legal")
    assert order("unload", **task(1)) == Command("unload", "french")
    assert order("list") == Command("list", None)
    assert decode_command(tensors(), NAMES) is None


def test_an_order_for_nobody_or_of_no_known_kind_is_refused() -> None:
    with pytest.raises(RequestError, match="list, load, unload"):
        order("merge", **task(1))
    for values in ({}, task(3)):
        with pytest.raises(NotFoundError):
            order("load", **values)


def test_an_order_is_answered_with_what_has_become_of_each_adapter(toy: Toy) -> None:
    def states(command: Command) -> dict[str, str]:
        response = carry_out(command, toy.engine)
        assert response.final
        told = [json.loads(text) for text in response.tensors["conch_adapters"].ravel()]
        assert [entry["id"] for entry in told] == [1, 2]
        return {entry["name"]: entry["state"] for entry in told}

    assert states(Command("list", None)) == {"a": "available", "b": "available"}
    assert states(Command("load", "a")) == {"a": "loaded", "b": "available"}
    assert states(Command("unload", "a")) == {"a": "unloaded", "b": "available"}
    with pytest.raises(NotFoundError):
        carry_out(Command("unload", "a"), toy.engine)


def test_metrics_tell_slots_loads_and_evictions(toy: Toy) -> None:
    for name in "ab":
        ask(toy.engine, request(name)).wait()
    stats = toy.engine.stats()
    assert samples(stats)["conch_engine_adapter_slots"] == {"max": 1, "used": 1, "requests_waiting": 0}
    assert (totals(stats)["adapter_loads"], totals(stats)["adapter_evictions"]) == (2, 1)
