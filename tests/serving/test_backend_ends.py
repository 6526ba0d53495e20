"""What ends an answer of an engine that knows no end ids: the model's own, told by preprocessing."""

from __future__ import annotations

from typing import Any

import pytest

from conch.backend.ends import Ends


def engine(**more: Any) -> dict[str, Any]:
    return {"backend": "tensorrt", "end_ids": [128001, 128009], "pad_id": None} | more


def told(ends: Ends) -> dict[str, int]:
    return {name: array.item() for name, array in ends.tensors().items()}


def test_one_id_ends_an_answer_and_the_others_stop_it() -> None:
    ends = Ends.of(engine())
    assert told(ends) == {"OUT_END_ID": 128001, "OUT_PAD_ID": 128001}
    assert ends.further == (128009,)
    assert told(Ends.of(engine(pad_id=7)))["OUT_PAD_ID"] == 7


@pytest.mark.parametrize("more", [{"backend": "openvino"}, {"backend": "pytorch"}, {"end_ids": []}])
def test_an_engine_that_knows_its_own_is_told_nothing(more: dict[str, Any]) -> None:
    ends = Ends.of(engine(**more))
    assert told(ends) == {} and ends.further == ()
