"""What vLLM takes on one GPU, line by line: weights, activation peak, graphs, the rest.

Every constant has a physical meaning; README.md of this folder has their sources and residuals.
Called by `vllm`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import prod

from qwen_engine.planning.device import Device
from qwen_engine.planning.quantities import MIB, ceil_div
from qwen_engine.planning.shape import BYTES_PER_ELEMENT, ModelShape
from qwen_engine.planning.tower import Tower, tower_shapes
from qwen_engine.planning.vllm_step import VllmStart, VllmStep
from qwen_engine.planning.weights import (
    checkpoint_factor,
    layer_matrices,
    matrix_bytes,
    small_parameters,
)

_SIZE = 2  # bytes of an activation: bfloat16 and float16
# hipBLASLt's workspace, taken before weights are loaded, so that it counts as one.
_HIPBLASLT_BYTES = 128 * MIB
# Rows of the encoder cache that one video of Qwen3-VL took while it held placeholders, and the
# embeddings among them (vllm-project/vllm pull requests 30475, 30451: 12.5 times as many).
_PLACEHOLDER_ROWS, _VIDEO_EMBEDDINGS = 153_600, 12_288


def vllm_weight_bytes(start: VllmStart, *, stage: int = 0) -> int:
    """Return the weights of one GPU of a pipeline stage, as torch's allocator holds them."""
    flags = start.flags
    ranks = flags.tensor_parallel_size * flags.data_parallel_size
    split = Split(
        tensor=flags.tensor_parallel_size,
        pipeline=flags.pipeline_parallel_size,
        experts=ranks if flags.enable_expert_parallel else 0,
    )
    return _weights(start.model, BYTES_PER_ELEMENT[start.dtype], split, stage)


def vllm_tower_bytes(start: VllmStart) -> int:
    """Return the vision tower's part of the weights."""
    size = BYTES_PER_ELEMENT[start.dtype]
    return _tower_bytes(start.model, size, start.flags.tensor_parallel_size)


@dataclass(frozen=True, slots=True)
class Split:
    """Over how many GPUs matrices, layers and experts (0: like matrices) are divided."""

    tensor: int
    pipeline: int
    experts: int


@lru_cache(maxsize=512)
def _weights(model: ModelShape, size: int, split: Split, stage: int) -> int:
    p = split.pipeline
    num_layers = ceil_div(model.num_layers, p)
    dense = min(len(model.dense_layers), num_layers)
    layers = (num_layers - dense) * _layer_bytes(model, size, split, is_dense=False)
    layers += dense * _layer_bytes(model, size, split, is_dense=True) if dense else 0
    num_tables = 1 if model.tie_word_embeddings else 2
    if p > 1:
        num_tables = 1 if stage in (0, p - 1) else 0
    tower = _tower_bytes(model, size, split.tensor) if stage == 0 else 0
    tables = _table_bytes(model, size, split.tensor) * num_tables
    decoder = int((layers + tables) * checkpoint_factor(model, size))
    return decoder + tower + rotary_bytes(model)


def rotary_bytes(model: ModelShape) -> int:
    """Return the table of cosines and sines; M-RoPE keeps four times the positions."""
    uses_axes = model.tower is not None and model.tower.kind != "pixtral"
    return model.max_len * model.head_dim * _SIZE * (4 if uses_axes else 1)


def deepstack_bytes(model: ModelShape, step: VllmStep) -> int:
    """Return the buffers that bring the tower's inner outputs to the first layers."""
    taps = len(model.vision.taps) if model.vision else 0
    return taps * step.max_num_batched_tokens * model.hidden_size * _SIZE


def platform_bytes(device: Device) -> int:
    """Return what the platform takes while weights are loaded."""
    return _HIPBLASLT_BYTES if device.is_amd else 0


def activation_terms(start: VllmStart, step: VllmStep) -> dict[str, int]:
    """Return the peaks of the profile run; they do not come together, the largest counts."""
    tower = None if start.flags.skip_mm_profiling else start.model.tower
    tokens, cached = _encoder_load(tower, start, step)
    kept = (tokens + cached) * tower.embedding_size * _SIZE if tower else 0
    peaks = {"text": _text_peak(start, step) + kept, "sampler": _sampler_peak(start, step) + kept}
    if tower and tokens:
        patches = tokens * tower.merge
        each = start.constants.tower_tensors * tower.hidden_size + tower.patch_values
        embeddings = tokens * tower.embedding_size
        peaks["vision"] = int((patches * each + embeddings) * _SIZE)
    return peaks


def non_torch_bytes(start: VllmStart) -> int:
    """Return what CUDA and NCCL take beside torch's allocator."""
    constants, flags, is_v0 = start.constants, start.flags, start.version.is_v0
    total = constants.context_v0_bytes if is_v0 else constants.context_v1_bytes
    if flags.tensor_parallel_size * flags.pipeline_parallel_size > 1:
        total += constants.nccl_v0_bytes if is_v0 else constants.nccl_v1_bytes
    has_fabric = start.device.has_nvlink and flags.tensor_parallel_size > 1
    if has_fabric and start.version.has_symmetric_memory:
        total += constants.symmetric_bytes
    if start.model.quantization and start.version.loads_packed_kernels:
        total += constants.quantised_bytes
    return int(total)


def graph_bytes(start: VllmStart, step: VllmStep) -> int:
    """Return the memory that captured CUDA graphs keep."""
    if start.flags.enforce_eager:
        return 0
    largest = min(512, 2 * step.max_num_seqs)
    sizes = len([1, 2, 4, *range(8, largest + 1, 8 if largest <= 256 else 16)])
    layers = ceil_div(start.model.num_layers, start.flags.pipeline_parallel_size)
    return int(sizes * layers * start.constants.graph_bytes)


def _text_peak(start: VllmStart, step: VllmStep) -> int:
    model, t = start.model, start.flags.tensor_parallel_size
    if model.experts:
        # Both products of the chosen experts, and the output of each, before they are summed.
        chosen, inner = model.experts.experts_per_token, model.experts.intermediate_size // t
        wide = chosen * (max(2 * inner, model.hidden_size) + inner)
    else:
        wide = 3 * ceil_div(model.intermediate_size, t)  # gate and up in one, and their product
    heads = ceil_div(model.q_size + 2 * model.kv_size, t) * 2
    each = max(wide, heads) + start.constants.hidden_tensors * model.hidden_size
    return int(step.max_num_batched_tokens * each * _SIZE)


def _sampler_peak(start: VllmStart, step: VllmStep) -> int:
    constants, model = start.constants, start.model
    hidden = step.max_num_batched_tokens * model.hidden_size * _SIZE
    if not step.samples_whole_batch:
        return hidden
    sorts = start.version.sorts_logits
    each = constants.sorted_sampler_bytes if sorts else constants.fused_sampler_bytes
    return int(step.max_num_seqs * model.vocab_size * each) + hidden


def _encoder_load(tower: Tower | None, start: VllmStart, step: VllmStep) -> tuple[int, int]:
    """Return the tokens that the profile run's pictures make, and the rows kept beside them."""
    if tower is None:
        return 0, 0
    flags, version = start.flags, start.version
    limits = flags.limit_mm_per_prompt
    images, videos = limits.get("image", 1), limits.get("video", 1)
    image = tower.largest_image_tokens
    if flags.max_pixels is not None:
        side = tower.patch_size**2 * tower.merge
        image = max(1, min(image, flags.max_pixels // side))
    if tower.kind == "pixtral":
        videos = 0
    if version.is_v0:  # one prompt with all the pictures it may have
        return (images + videos) * image, 0
    if tower.kind == "qwen3":
        if videos and version.caches_placeholders:
            return _VIDEO_EMBEDDINGS, _PLACEHOLDER_ROWS
        largest = max(image if images else 0, _VIDEO_EMBEDDINGS if videos else 0)
    else:
        # As many frames of the largest size as the context holds.
        frames = max(1, step.max_model_len // image) if videos else 1
        largest = image * frames if images or videos else 0
    if not (images or videos):
        return 0, 0
    items = max(1, step.max_num_batched_tokens // largest)
    return largest * items, 0


def _layer_bytes(model: ModelShape, size: int, split: Split, *, is_dense: bool) -> int:
    """Return a layer as the fused tensors that vLLM makes of it."""
    t, expert_ranks = split.tensor, split.experts
    tensors: dict[str, list[int]] = {}
    for matrix in layer_matrices(model, t, is_dense=is_dense):
        packed, scales = matrix_bytes(model, matrix, size)
        if matrix.count > 1 and expert_ranks:
            packed = packed * t // expert_ranks
            scales = scales * t // expert_ranks
        first = matrix.fused not in tensors  # gate and up share their columns' order
        if first and matrix.count > 1 and model.quantization:
            scales += matrix.count * model.quantization.index_total(matrix.cols)
        kept = tensors.setdefault(matrix.fused, [0, 0])
        kept[0] += packed
        kept[1] += scales
    fused = sum(allocated(packed) + scales for packed, scales in tensors.values())
    return fused + small_parameters(model, t, is_dense=is_dense) * size


def _table_bytes(model: ModelShape, size: int, t: int) -> int:
    rows = ceil_div(ceil_div(model.vocab_size, 64) * 64, t)
    packing = model.quantization
    if packing and packing.whole_model:
        return allocated(packing.packed_bytes(rows, model.hidden_size))
    return allocated(rows * model.hidden_size * size)


@lru_cache(maxsize=128)
def _tower_bytes(model: ModelShape, size: int, t: int) -> int:
    shapes = tower_shapes(model.tower) if model.tower else ()
    return sum(allocated(prod(s) * size // (t if len(s) == 2 else 1)) for s in shapes)


def allocated(num_bytes: int) -> int:
    """Return what torch's allocator counts for a tensor.

    Above 10 MiB it asks for multiples of 2 MiB, and gives the rest back only if that is more than
    1 MiB (pytorch c10/cuda/CUDACachingAllocator.cpp: get_allocation_size, should_split).
    """
    if num_bytes <= 10 * MIB:
        return num_bytes
    rounded = ceil_div(num_bytes, 2 * MIB) * 2 * MIB
    return rounded if rounded - num_bytes <= MIB else num_bytes
