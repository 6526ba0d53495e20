"""NVIDIA's GPUs for inference, from A10 to GB200: memory, bandwidth, arithmetic, links. Data; looks at no machine.

From NVIDIA's data sheets of each product (A10, A100, L4, L40S, H100, H20, H200, DGX B200, GB200 NVL72) and its white
papers on the Ada and RTX Blackwell architectures. Arithmetic is dense: data sheets since Ampere print twice as much,
for weights of which every other is zero. Of GeForce cards it is that with sums in 32 bits, which language models need.
Memory is what the driver reports as total, with error correction where that is the default: less than on the label.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass

from conch_build.errors import PlanError
from conch_build.plan import Plan

WHERE = "target.gpu"


@dataclass(frozen=True)
class Gpu:
    name: str
    """Key in GPUS, and the plan's `target.gpu`."""
    label: str
    sm: int
    """Compute capability as TensorRT-LLM writes it: 90 for 9.0."""
    memory_bytes: int
    bandwidth_bytes_s: float
    """Of its memory."""
    flops: Mapping[str, float]
    """Dense operations a second by type: fp16, bf16, int8, fp8, fp4. Without those it has no units for."""
    nvlink_bytes_s: float | None = None
    """To all its neighbours, both directions together; None: over PCI Express alone."""
    aliases: tuple[str, ...] = ()

    def has(self, dtype: str) -> bool:
        """Whether it multiplies numbers of that type."""
        return dtype in self.flops


def _gpu(
    name: str,
    label: str,
    sm: int,
    mebibytes: int,
    gigabytes_s: float,
    tera: Mapping[str, float],
    nvlink_gigabytes_s: float | None = None,
    aliases: tuple[str, ...] = (),
) -> Gpu:
    flops = {dtype: value * 1e12 for dtype, value in {"bf16": tera["fp16"], **tera}.items()}
    nvlink = None if nvlink_gigabytes_s is None else nvlink_gigabytes_s * 1e9
    return Gpu(name, label, sm, mebibytes << 20, gigabytes_s * 1e9, flops, nvlink, aliases)


_A100 = {"fp16": 312, "int8": 624}
_H100 = {"fp16": 989.4, "int8": 1978.9, "fp8": 1978.9}
_NVL = {"fp16": 835.5, "int8": 1671, "fp8": 1671}

_ALL = (
    _gpu("a10", "A10", 86, 23028, 600, {"fp16": 125, "int8": 250}),
    _gpu("a30", "A30", 80, 24576, 933, {"fp16": 165, "int8": 330}, 200),
    _gpu("a40", "A40", 86, 46068, 696, {"fp16": 149.7, "int8": 299.3}, 112.5),
    _gpu("a100-40gb", "A100 SXM 40 GB", 80, 40960, 1555, _A100, 600, ("a100-sxm4-40gb", "a100-pcie-40gb")),
    _gpu("a100", "A100 SXM 80 GB", 80, 81920, 2039, _A100, 600, ("a100-80gb", "a100-sxm", "a100-sxm4-80gb")),
    _gpu("a100-pcie", "A100 PCIe 80 GB", 80, 81920, 1935, _A100, 600, ("a100-80gb-pcie", "a100-pcie-80gb")),
    _gpu("l4", "L4", 89, 23034, 300, {"fp16": 121, "int8": 242.5, "fp8": 242.5}),
    _gpu("l40", "L40", 89, 46068, 864, {"fp16": 181.05, "int8": 362, "fp8": 362}),
    _gpu("l40s", "L40S", 89, 46068, 864, {"fp16": 362.05, "int8": 733, "fp8": 733}),
    _gpu("rtx4090", "GeForce RTX 4090", 89, 24564, 1008, {"fp16": 165.2, "int8": 660.6, "fp8": 330.3}, None, ("4090",)),
    _gpu(
        "rtx5090",
        "GeForce RTX 5090",
        120,
        32607,
        1792,
        {"fp16": 209.5, "int8": 838, "fp8": 419, "fp4": 1676},
        None,
        ("5090",),
    ),
    _gpu("h20", "H20", 90, 97871, 4000, {"fp16": 148, "int8": 296, "fp8": 296}, 900, ("h20-sxm", "h20-96gb")),
    _gpu("h100", "H100 SXM", 90, 81559, 3352, _H100, 900, ("h100-sxm", "h100-sxm5", "h100-80gb", "h100-80gb-hbm3")),
    _gpu("h100-pcie", "H100 PCIe", 90, 81559, 2039, {"fp16": 756, "int8": 1513, "fp8": 1513}, 600),
    _gpu("h100-nvl", "H100 NVL", 90, 95830, 3938, _NVL, 600, ("h100-94gb",)),
    _gpu("h200", "H200 SXM", 90, 143771, 4800, _H100, 900, ("h200-sxm", "h200-141gb")),
    _gpu("h200-nvl", "H200 NVL", 90, 143771, 4800, _NVL, 900),
    _gpu(
        "b200", "B200", 100, 183359, 8000, {"fp16": 2250, "int8": 4500, "fp8": 4500, "fp4": 9000}, 1800, ("b200-sxm",)
    ),
    _gpu(
        "gb200",
        "GB200",
        100,
        189471,
        8000,
        {"fp16": 2500, "int8": 5000, "fp8": 5000, "fp4": 10000},
        1800,
        ("gb200-nvl72",),
    ),
)

GPUS: dict[str, Gpu] = {gpu.name: gpu for gpu in _ALL}


def find_gpu(name: str) -> Gpu:
    """A GPU by its name, a common one, or the one that its driver gives. Raises PlanError with the nearest name."""
    plain = _plain(name)
    if plain in _BY_NAME:
        return _BY_NAME[plain]
    near = difflib.get_close_matches(plain, _BY_NAME, n=1, cutoff=0.5)
    fix = f"Did you mean `{_BY_NAME[near[0]].name}`? " if near else ""
    raise PlanError(f"there is no GPU `{name}` in the table", where=WHERE, fix=f"{fix}Known: {', '.join(GPUS)}.")


def gpu_of(plan: Plan) -> Gpu:
    """The GPU that a plan is for. Raises PlanError if it names none, or one that is not known."""
    if plan.target.gpu is None:
        raise PlanError(
            f"does not say which GPU, and the {plan.engine.backend} backend needs to know",
            where=WHERE,
            fix=f"Set it to one of {', '.join(GPUS)}.",
        )
    return find_gpu(plan.target.gpu)


def _plain(name: str) -> str:
    """`NVIDIA H100 80GB HBM3` -> `h10080gbhbm3`"""
    return re.sub(r"nvidia|tesla|geforce|[^a-z0-9]", "", name.lower())


_BY_NAME = {_plain(name): gpu for gpu in _ALL for name in (gpu.name, gpu.label, *gpu.aliases)}
