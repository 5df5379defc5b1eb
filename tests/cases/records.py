"""A file of start-ups that users published, read as what the planner is asked and what came out.

The format: `records`, each with `hf_config`, `gpu`, `flags`, `flags_default`, `version`, `observed`
and `score_on`. Nothing is looked up by id or by a model's name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from qwen_engine.planning.device import Device, build_gpu
from qwen_engine.planning.gpus import find_product, product_named
from qwen_engine.planning.shape import DTypeName, read_model_facts
from qwen_engine.planning.vllm_step import VllmFlags, VllmStart
from qwen_engine.planning.vllm_version import parse_version

GIB = 2**30
_DTYPES: Mapping[str, DTypeName] = {
    "half": "float16", "float16": "float16", "bfloat16": "bfloat16", "float32": "float32",
}  # fmt: skip
_KNOWN = {
    "gpu_memory_utilization", "max_model_len", "max_num_seqs", "max_num_batched_tokens",
    "tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "block_size",
    "enable_expert_parallel", "enable_chunked_prefill", "enforce_eager", "kv_cache_dtype",
    "skip_mm_profiling",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Record:
    """One start-up. `start` is None where the card's memory or the model is not told."""

    id: str
    text: str
    start: VllmStart | None
    observed: Mapping[str, Any]
    score_on: frozenset[str]
    right_outcome: str | None


def read_records(path: Path) -> list[Record]:
    """Read a file of records."""
    document = yaml.load(
        path.read_text("utf-8"), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    )
    return [_record(found) for found in document["records"]]


def _record(found: Mapping[str, Any]) -> Record:
    observed = found.get("observed") or {}
    return Record(
        id=found["id"],
        text=f"{found.get('model')} · {(found.get('gpu') or {}).get('product')}",
        start=_start(found),
        observed=observed,
        score_on=frozenset(found.get("score_on") or ()),
        right_outcome=found.get("right_answer_for_a_planner") or observed.get("outcome"),
    )


def _start(found: Mapping[str, Any]) -> VllmStart | None:
    config = found.get("hf_config")
    if not config:
        return None
    flags = {**(found.get("flags_default") or {}), **(found.get("flags") or {})}
    flags = {name: value for name, value in flags.items() if not _is_unsaid(value)}
    model = read_model_facts({"dtype": "bfloat16", **config}, model_id=str(found.get("model")))
    device = _device(found.get("gpu") or {}, is_wsl="WSL" in str(found.get("note", "")))
    version = parse_version(str(found.get("version", "")))
    told = {name: value for name, value in flags.items() if name in _KNOWN}
    if "mem_fraction_static" in flags:  # SGLang: weights and KV, as a share of the card
        told["gpu_memory_utilization"] = flags["mem_fraction_static"]
    pixels = (flags.get("mm_processor_kwargs") or {}).get("max_pixels")
    limits = flags.get("limit_mm_per_prompt") or {}
    return VllmStart(
        model=model,
        device=device,
        dtype=_DTYPES.get(str(flags.get("dtype")), model.dtype),
        flags=VllmFlags(**told, limit_mm_per_prompt=limits, max_pixels=pixels),
        version=version,
    )


def _is_unsaid(value: object) -> bool:
    return value is None or value == "engine default"


def _device(gpu: Mapping[str, Any], *, is_wsl: bool) -> Device:
    """Return the card; 0 bytes where nothing says what it has."""
    said = str(gpu.get("product") or "")
    product = product_named(said)
    row = find_product(product) if product else None
    seen, memory_mib = gpu.get("total_gib_seen_by_engine"), gpu.get("memory_mib")
    if memory_mib is None and seen is not None:
        memory_mib = int(seen * 1024)
    elif memory_mib is None and row is None and (size := re.search(r"(\d+) ?GB", said)):
        memory_mib = int(size[1]) * 1024
    device = build_gpu(product or said, memory_mib, row, source="the record")
    if is_wsl:
        return replace(device, cuda_memory_bytes=device.memory_bytes)
    return device if seen is None else replace(device, cuda_memory_bytes=int(seen * GIB))
