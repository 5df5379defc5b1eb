"""The catalogue of GPU products, and how a name people write finds its row.

Reads data/gpus.yaml once. Called by `device`, `refusal` and `compare`, and by the operator.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, Literal

import yaml

GpuClass = Literal["consumer", "laptop", "workstation", "datacenter", "unified"]
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
# Of a card: 1g.10gb, also 1c.2g.20gb and 1g.10gb.me, by MIG; 24Q, also 1-10C of a slice, by vGPU.
_PART = re.compile(r"-MIG-(?:\d+c\.)?\d+g\.(\d+)gb(?:\.me)?$|(?:-\d)?-(\d+)[ABCQ]$")
_VIRTUAL = re.compile(r"^(?:NVIDIA-)?GRID-")
# A slice is named after more than it has: 1g.18gb of an H200 has 16,384 MiB (nvidia-smi mig -lgip).
_PART_SHARE = 0.95
_WORD = re.compile(r"[a-z]+|\d+")


@dataclass(frozen=True, slots=True)
class GpuProduct:
    """A row of the catalogue. Memory in MiB, as the driver reports it.

    Attributes:
        bandwidth_gbs: of its memory, in GB/s.
        cost: rough dollars an hour, only to order suggestions.
        source: where the row comes from, as the file's head explains.
    """

    memory_mib: int
    capability: tuple[int, int]
    bandwidth_gbs: int
    kind: GpuClass
    has_nvlink: bool
    cost: float
    source: str

    @property
    def consumer(self) -> bool:
        """The card may also draw a desktop."""
        return self.kind in ("consumer", "laptop")


def load_data(name: str) -> Any:
    """Return a data file of the planner, parsed."""
    text = resources.files("qwen_engine.planning").joinpath(f"data/{name}").read_text("utf-8")
    return yaml.load(text, Loader=_LOADER)


@cache
def gpu_products() -> Mapping[str, GpuProduct]:
    """Return the catalogue, keyed by product in gpu-feature-discovery's spelling."""
    return {name: _parse_row(row) for name, row in load_data("gpus.yaml").items()}


def _parse_row(row: list[Any]) -> GpuProduct:
    memory, capability, bandwidth, kind, has_nvlink, cost, source = row
    major, minor = str(capability).split(".")
    return GpuProduct(
        int(memory), (int(major), int(minor)), int(bandwidth), kind, has_nvlink, float(cost), source
    )


def find_product(product: str) -> GpuProduct | None:
    """Return the row of a product label: whole, time-sliced, a MIG slice, or a vGPU of it."""
    whole = _VIRTUAL.sub("", _PART.sub("", product.removesuffix("-SHARED")))
    rows = gpu_products()
    # Old drivers leave the maker out of the name: A100-SXM4-40GB.
    return rows.get(whole) or rows.get(f"NVIDIA-{whole}")


def part_mib(product: str) -> int | None:
    """Return the memory of a MIG slice or a virtual GPU by its name; None for a whole card."""
    match = _PART.search(product)
    return int(int(match[1] or match[2]) * 10**9 * _PART_SHARE) // 2**20 if match else None


def product_named(text: str) -> str | None:
    """Return the product people mean by a name such as `NVIDIA A100 80GB` or `RTX 4090`.

    Of several that match, the one with the least memory: a plan for it fits the others too.
    """
    plain = re.sub(r"\(.*?\)|,.*", "", text).strip()
    label = "-".join(plain.split())
    if find_product(label) is not None:
        full = f"NVIDIA-{label}"
        return full if full in gpu_products() else label
    wanted = [word for word in _words(plain) if word not in ("nvidia", "geforce", "gb", "tesla")]
    sizes = {int(n) for n in re.findall(r"(\d+) ?GB", plain, re.IGNORECASE)}
    wanted = [word for word in wanted if not (word.isdigit() and int(word) in sizes)]
    matches = [
        (row.memory_mib, len(name), name)
        for name, row in gpu_products().items()
        if wanted
        and set(wanted) <= set(_words(name))
        and all(abs(row.memory_mib / 1024 - size) <= 0.1 * size for size in sizes)
    ]
    exact = [m for m in matches if _extras(m[2], wanted) == 0]
    return min(exact or matches)[2] if matches else None


def _words(name: str) -> list[str]:
    return _WORD.findall(name.lower())


def _extras(name: str, wanted: list[str]) -> int:
    """Return how many words of a name make it another card: Ti, SUPER, Laptop."""
    special = {"ti", "super", "laptop", "max", "q", "s", "nvl"}
    return len(special & set(_words(name)) - set(wanted))
