"""CPUs and GPUs shared out among replicas."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conch.fleet.places import _parts, places
from conch.triton.place import EVERYWHERE, Place
from conch_build.errors import SetupError
from conch_build.launch import SINGLE, Arrangement


@given(st.lists(st.integers(), unique=True, min_size=1, max_size=200), st.data())
def test_every_cpu_belongs_to_one_replica_and_no_replica_has_many_more_than_another(
    cpus: list[int], data: st.DataObject
) -> None:
    count = data.draw(st.integers(1, len(cpus)))
    parts = _parts(cpus, count)
    assert [cpu for part in parts for cpu in part] == cpus
    sizes = {len(part) for part in parts}
    assert max(sizes) - min(sizes) <= 1 and min(sizes) >= 1


def test_one_replica_has_the_machine_to_itself() -> None:
    assert places(1, SINGLE) == [EVERYWHERE]
    assert places(1, Arrangement(world_size=2, gpus_per_node=8)) == [EVERYWHERE]


def test_each_engine_has_gpus_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    two_each = Arrangement(mode="leader", world_size=2, gpus_per_node=8)
    assert places(3, two_each) == [Place(gpus=(0, 1)), Place(gpus=(2, 3)), Place(gpus=(4, 5))]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7,5,3,1")
    assert places(2, two_each) == [Place(gpus=(7, 5)), Place(gpus=(3, 1))]


def test_more_replicas_than_cpus_are_refused() -> None:
    with pytest.raises(SetupError, match=r"serving\.replicas.*replicas need a CPU each"):
        places(len(os.sched_getaffinity(0)) + 1, SINGLE)
