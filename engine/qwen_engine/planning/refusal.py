"""Says why a draft does not fit, the longest context that would, and the changes that help."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NoReturn

from qwen_engine.planning.catalogue import find_model, variants_of
from qwen_engine.planning.demands import Demands
from qwen_engine.planning.device import Device, gpu_from_spec
from qwen_engine.planning.draft import Draft
from qwen_engine.planning.errors import DoesNotFitError, PlanningError, WayOut
from qwen_engine.planning.fit import HIGHEST_UTILIZATION, fits, largest_context, memory_needed
from qwen_engine.planning.gpus import gpu_products
from qwen_engine.planning.ledger import blocks_for
from qwen_engine.planning.parallel import LARGEST_TENSOR_PARALLEL, tensor_parallel_problem
from qwen_engine.planning.pictures import LEAST_USEFUL, sizes_demand
from qwen_engine.planning.quantities import MIB, format_bytes
from qwen_engine.planning.settle import is_possible
from qwen_engine.planning.shape import ModelShape
from qwen_engine.planning.support import runs_here
from qwen_engine.planning.weights import weight_bytes

_INT8_FITS = "int8 weights fit it (spec.engine.overrides.quantization, --quantization int8)"
_SHORTEST_USEFUL = 256  # tokens; a shorter context is no way out


def refuse(draft: Draft, demands: Demands, *, asked: ModelShape) -> NoReturn:
    """Raise DoesNotFitError with the figures and the changes of which each alone helps.

    Args:
        asked: the model as its checkpoint has it; the draft's is as our engine would keep it.
    """
    largest = largest_context(draft)
    ways = tuple(_ways_out(replace(draft, model=asked), demands, largest))
    raise DoesNotFitError(
        _figures(draft, largest),
        largest_model_len=largest,
        suggestion=_single_change(draft, demands, ways),
        ways=ways,
    )


def _figures(draft: Draft, largest: int) -> str:
    length, override = draft.step.max_model_len, draft.num_blocks_override
    needed, each = blocks_for(length, draft.block_size), draft.block_bytes
    lines = sorted(draft.fixed_lines(), key=lambda line: line.component != "weights")
    parts = [f"{line.component} {format_bytes(line.num_bytes)}" for line in lines]
    if draft.swap_bytes:
        parts.append(f"swap {format_bytes(draft.swap_bytes)}")
    blocks = needed if override is None else override
    total = draft.device.memory_bytes if draft.vllm is None else draft.device.visible_bytes
    size = draft.vllm_flags.tensor_parallel_size
    return (
        f"{draft.model.model_id} does not fit on {f'{size} × ' if size > 1 else ''}"
        f"{draft.device.product} for {length:,} tokens: {' + '.join(parts)} + {blocks:,} KV blocks "
        f"of {format_bytes(each)} = {format_bytes(draft.fixed_bytes() + blocks * each)}, but "
        f"{draft.utilization:g} × {format_bytes(total)} = {format_bytes(draft.budget_bytes)}"
        + (f" and one request needs {needed:,} blocks" if override is not None else "")
        + f". The largest context that fits is {largest:,} tokens."
    )


def _single_change(draft: Draft, demands: Demands, ways: tuple[WayOut, ...]) -> str:
    """Return the first change, cheapest to the user first, that alone makes the draft fit."""
    if draft.num_blocks_override is not None:
        without = replace(draft, num_blocks_override=None)
        if fits(without):
            return "Drop numGpuBlocksOverride (--num-gpu-blocks-override): then it fits."
    higher = replace(draft, utilization=HIGHEST_UTILIZATION)
    if draft.utilization < HIGHEST_UTILIZATION and fits(higher):
        return (
            f"Raise gpuMemoryUtilization (--gpu-memory-utilization) to {HIGHEST_UTILIZATION:g}: "
            "then it fits."
        )
    for way in ways:
        if way.kind == "pictures":
            return f"{way.sentence[0].upper()}{way.sentence[1:]}."
        if way.kind == "length":
            length = way.change["max_model_len"]
            return f"Set maxModelLen (--max-model-len) to {length} or less: then it fits."
    return _more_memory(draft)


def _more_memory(draft: Draft) -> str:
    needed = memory_needed(draft)
    if draft.device.kind == "cpu":
        return f"Raise the memory limit to {needed // MIB} Mi: then it fits."
    return f"Use a GPU with at least {needed // MIB:,} MiB: then it fits."


def _ways_out(draft: Draft, demands: Demands, largest: int) -> Iterator[WayOut]:
    """Yield the length, the number of GPUs, the precision and the GPU that fit, where one does."""
    if (way := _smaller_pictures(draft, demands)) is not None:
        yield way
    if demands.max_model_len is not None and largest >= _SHORTEST_USEFUL:
        yield WayOut("length", f"at most {largest:,} tokens fit", {"max_model_len": largest})
    if draft.device.kind == "gpu":
        for way in (_more_gpus(draft, demands), _packed(draft, demands), _cheapest(draft, demands)):
            if way is not None:
                yield way


def _smaller_pictures(draft: Draft, demands: Demands) -> WayOut | None:
    """Return the largest bound of pixels with which it fits; if none does, text only."""
    vision, pictures = draft.model.vision, draft.pictures
    if vision is None or pictures is None:
        return None
    low, high = 0, pictures.largest_tokens - 1
    while low < high:
        middle = (low + high + 1) // 2
        if _fits(draft, sizes_demand(vision, demands, middle)):
            low = middle
        else:
            high = middle - 1
    if low >= LEAST_USEFUL:
        change = sizes_demand(vision, demands, low).mm_processor_kwargs
        sentence = (
            f"bound pictures to max_pixels {low * vision.token_pixels} and videos likewise "
            f"(--mm-processor-kwargs '{json.dumps(change)}'): then it fits"
        )
        return WayOut("pictures", sentence, {"mm_processor_kwargs": change})
    text_only: dict[str, Any] = {
        "limit_mm_per_prompt": {"image": 0, "video": 0},
        "mm_processor_kwargs": None,
        "encoder_cache_tokens": None,
    }
    if not _fits(draft, replace(demands, **text_only)):
        return None
    sentence = "serve text only (--limit-mm-per-prompt image=0,video=0): then it fits"
    return WayOut("pictures", sentence, text_only)


def _more_gpus(draft: Draft, demands: Demands) -> WayOut | None:
    for size in (2**n for n in range(1, LARGEST_TENSOR_PARALLEL.bit_length())):
        if size <= draft.vllm_flags.tensor_parallel_size or tensor_parallel_problem(
            draft.model, size
        ):
            continue
        wanted = replace(demands, engine="vllm", tensor_parallel_size=size, quantization="none")
        if _fits(draft, wanted):
            name = (
                f"{size} such GPUs fit it (spec.gpu.count: {size} with spec.engine.runtime: VLLM; "
                f"--engine vllm --tensor-parallel-size {size})"
            )
            change = {"engine": "vllm", "tensor_parallel_size": size, "quantization": "none"}
            return WayOut("gpus", name, change)
    return None


def _packed(draft: Draft, demands: Demands) -> WayOut | None:
    """Return 8 bits made at load, else the most precise published checkpoint that fits."""
    if demands.engine == "qwen" and _fits(draft, replace(demands, quantization="int8")):
        return WayOut("precision", _INT8_FITS, {"quantization": "int8"})
    for name in variants_of(draft.model.model_id):
        model = find_model(name)
        other = replace(draft, model=model)
        if runs_here(model) and _fits(other, demands):
            return WayOut("precision", f"{name} fits", {"model": name})
        with_vllm = replace(demands, engine="vllm", quantization="none")
        if _fits(other, with_vllm):
            sentence = f"{name} fits" + (" (with vLLM)" if demands.engine != "vllm" else "")
            change = {"model": name, "engine": "vllm", "quantization": "none"}
            return WayOut("precision", sentence, change)
    return None


def _cheapest(draft: Draft, demands: Demands) -> WayOut | None:
    rows = sorted(gpu_products().items(), key=lambda item: (item[1].cost, item[1].memory_mib))
    size = draft.vllm_flags.tensor_parallel_size
    least = weight_bytes(draft.model, draft.dtype, size)
    for name, row in rows:
        if row.memory_mib * MIB <= least or row.kind in ("laptop", "unified"):
            continue
        if name == draft.device.product:
            continue
        card = replace(gpu_from_spec(name), count=draft.device.count)
        if _fits(replace(draft, device=card), demands):
            return WayOut("gpu", _of_which(draft, card, demands), {"gpu": name})
    return None


def _of_which(draft: Draft, card: Device, demands: Demands) -> str:
    """Say how many of a card that is known to fit are needed."""
    for count in (2**n for n in range(card.count.bit_length())):
        if _fits(replace(draft, device=replace(card, count=count)), demands):
            break
    return f"{card.product} fits it" if count == 1 else f"{count} × {card.product} fit it"


def _fits(draft: Draft, demands: Demands) -> bool:
    try:
        return is_possible(draft.model, draft.device, demands)
    except PlanningError:
        return False
