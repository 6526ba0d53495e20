"""The table of GPUs: names people use, and numbers that fit together."""

from __future__ import annotations

import pytest

from conch_build.errors import PlanError
from conch_build.gpu.cards import GPUS, find_gpu, gpu_of
from conch_build.plan import Plan, parse_plan


def plan(target: str) -> Plan:
    return parse_plan(f"{{name: m, model: {{checkpoint: sample}}, engine: {{backend: pytorch}}, target: {{{target}}}}}")


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("h100", "h100"),
        ("H100", "h100"),
        ("H100-SXM", "h100"),
        ("h100 pcie", "h100-pcie"),
        ("a100", "a100"),
        ("A100-80GB", "a100"),
        ("a100_40gb", "a100-40gb"),
        ("L40s", "l40s"),
        ("RTX 4090", "rtx4090"),
        ("5090", "rtx5090"),
        ("GB200", "gb200"),
        ("NVIDIA A10", "a10"),
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("NVIDIA A100 80GB PCIe", "a100-pcie"),
        ("NVIDIA A100-SXM4-40GB", "a100-40gb"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H100 NVL", "h100-nvl"),
        ("NVIDIA GeForce RTX 4090", "rtx4090"),
    ],
)
def test_people_and_drivers_name_them_in_many_ways(name: str, found: str) -> None:
    assert find_gpu(name).name == found


def test_each_is_found_by_its_own_name() -> None:
    for name, gpu in GPUS.items():
        assert gpu.name == name and find_gpu(name) is gpu and find_gpu(gpu.label) is gpu


def test_one_that_is_not_known_is_refused_with_the_nearest() -> None:
    with pytest.raises(PlanError, match="Did you mean `h100`") as caught:
        find_gpu("h1000")
    assert caught.value.where == "target.gpu"
    with pytest.raises(PlanError, match="Known: a10"):
        find_gpu("tpu")


def test_a_plan_names_its_own() -> None:
    assert gpu_of(plan("gpu: L40S")).label == "L40S"
    with pytest.raises(PlanError, match="does not say which GPU"):
        gpu_of(plan("gpus_per_node: 8"))


@pytest.mark.parametrize(
    ("name", "sm", "label_gb", "tb_s", "bf16", "fp8", "fp4"),
    [
        ("a10", 86, 24, 0.6, 125, None, None),
        ("a100", 80, 80, 2.039, 312, None, None),
        ("l4", 89, 24, 0.3, 121, 242.5, None),
        ("l40s", 89, 48, 0.864, 362.05, 733, None),
        ("h100", 90, 80, 3.352, 989.4, 1978.9, None),
        ("h200", 90, 141, 4.8, 989.4, 1978.9, None),
        ("b200", 100, 192, 8.0, 2250, 4500, 9000),
    ],
)
def test_numbers_are_those_of_the_data_sheets(
    name: str, sm: int, label_gb: int, tb_s: float, bf16: float, fp8: float | None, fp4: float | None
) -> None:
    gpu = GPUS[name]
    assert gpu.sm == sm
    assert 0.9 * label_gb * 1e9 < gpu.memory_bytes < 1.08 * label_gb * 1e9
    assert gpu.bandwidth_bytes_s == pytest.approx(tb_s * 1e12)
    for dtype, tera in (("bf16", bf16), ("fp16", bf16), ("fp8", fp8), ("fp4", fp4)):
        assert gpu.flops.get(dtype) == (None if tera is None else pytest.approx(tera * 1e12))


def test_number_formats_come_with_their_generation() -> None:
    for gpu in GPUS.values():
        assert gpu.has("fp16") and gpu.has("bf16") and gpu.has("int8")
        assert gpu.has("fp8") == (gpu.sm >= 89)
        assert gpu.has("fp4") == (gpu.sm >= 100)


def test_half_the_bits_are_at_least_twice_as_fast_and_never_sparse() -> None:
    for gpu in GPUS.values():
        for wide, narrow in (("fp16", "int8"), ("fp16", "fp8"), ("fp8", "fp4")):
            if gpu.has(narrow):
                assert 1.9 <= gpu.flops[narrow] / gpu.flops[wide] <= 4.1, (gpu.name, narrow)


def test_only_data_centre_cards_have_links_of_their_own() -> None:
    without = {name for name, gpu in GPUS.items() if gpu.nvlink_bytes_s is None}
    assert without == {"a10", "l4", "l40", "l40s", "rtx4090", "rtx5090"}
    assert GPUS["h100"].nvlink_bytes_s == 900e9
    assert GPUS["b200"].nvlink_bytes_s == 1800e9
