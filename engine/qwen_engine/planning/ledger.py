"""The bytes of a plan, line by line.

Pure arithmetic over model, device and settings: no choice is made here. Weights and KV are exact;
activations and runtime are estimates whose terms are stated in the ledger itself.
"""

from __future__ import annotations

from dataclasses import dataclass

from qwen_engine.planning.device import Device
from qwen_engine.planning.quantities import MIB, ceil_div, format_bytes
from qwen_engine.planning.shape import BYTES_PER_ELEMENT, KV_SCALE_BYTES, DTypeName, ModelShape
from qwen_engine.planning.weights import num_parameters, weight_bytes

# Host memory of a process beside a GPU, swap apart; rounded up for CUDA's libraries.
CPU_RUNTIME_BYTES = 700 * MIB
# Resident bytes of a server on a CPU at rest, weights, KV and tokenizer apart: 601-612 MiB with
# torch 2.15 on x86-64, of which 265 are library pages (qwen_engine/memory.py measures it anew).
_SERVER_BYTES = 610 * MIB
# A tokenizer's tables grow with its vocabulary: 0.65 KB a token measured with SmolLM2's 49,152 and
# Qwen3's 151,936; the matcher of structured output, made at its first use, adds 0.9 to 1.2 KB.
# Planned is what lies between, so that either is within the reserve.
_TOKENIZER_BYTES = 1100
# A CUDA context with the kernels that are loaded on the way: non-torch memory in vLLM's start-up
# logs on one card.
_CONTEXT_BYTES = 133 * MIB
# torch's workspace for cuBLAS by architecture (ATen/cuda/CublasHandlePool.cpp).
_LARGE_WORKSPACE_MAJORS = (9, 10, 12)
_WORKSPACE_BYTES = (4096 * 1024 * 2 + 16 * 1024 * 8, 4096 * 1024 * 8)
# Fragmentation: torch's allocator takes segments of 2 MiB for tensors up to 1 MiB and of 20 MiB for
# those up to 10 MiB (c10/cuda/CUDACachingAllocator.h), of which one each is partly filled.
_FRAGMENTS_BYTES = 22 * MIB
# float32 logits, their sorted copy and the probabilities live together while sampling.
_LOGITS_COPIES = 3
# Context that attention gathers at once (layers/attention/sdpa.py, MAX_GROUP_TOKENS); one request
# is always gathered whole.
GATHERED_TOKENS = 16_384
# Tokens whose experts are computed together (models/experts.py): 64 rows of each of 128 experts,
# of which a token takes 8. With more rows a product is not faster, with fewer memory bounds it.
EXPERT_TILE_TOKENS = 1024


@dataclass(frozen=True, slots=True)
class LedgerLine:
    """One component's bytes, and how they were computed."""

    component: str
    num_bytes: int
    how: str


@dataclass(frozen=True, slots=True)
class StepSize:
    """The limits of one engine step, which its activations grow with."""

    max_num_batched_tokens: int
    max_num_seqs: int
    max_model_len: int


def block_bytes(model: ModelShape, dtype: DTypeName, block_size: int) -> int:
    """Return the bytes of one block: keys and values of block_size tokens over all layers."""
    return model.kv_bytes_per_token(BYTES_PER_ELEMENT[dtype]) * block_size


def activation_bytes(model: ModelShape, dtype: DTypeName, step: StepSize) -> int:
    """Return the estimated peak of one step beyond weights and KV cache."""
    return sum(line.num_bytes for line in activation_lines(model, dtype, step))


def activation_lines(model: ModelShape, dtype: DTypeName, step: StepSize) -> list[LedgerLine]:
    """Return the terms of the activation peak: layer tensors, gathered context, logits."""
    size = BYTES_PER_ELEMENT[dtype]
    tokens = step.max_num_batched_tokens
    gathered = max(step.max_model_len, min(GATHERED_TOKENS, step.max_num_seqs * step.max_model_len))
    context = 2 * gathered * model.kv_size * size
    if model.kv_cache_dtype != "auto":  # gathered as it lies, then widened
        context += gathered * model.kv_bytes_per_token(size) // model.num_layers
    logits = _LOGITS_COPIES * step.max_num_seqs * model.vocab_size * 4
    return [
        _layer_line(model, tokens, size),
        LedgerLine("context", context, f"keys and values of {gathered:,} tokens"),
        LedgerLine("logits", logits, f"{step.max_num_seqs} × {model.vocab_size:,} × 4 B × 3"),
    ]


def _layer_line(model: ModelShape, tokens: int, size: int) -> LedgerLine:
    """Return the tensors of one layer: of attention, or of the feed-forward.

    Residual and normed input, then either q, k, v with rotated copies and the output of attention,
    or gate, up and their product. Experts take their tokens' rows, at worst all of them one's.
    """
    hidden, experts = model.hidden_size, model.experts
    inner = 3 * model.intermediate_size if experts is None or model.dense_layers else 0
    widest = 2 * hidden + max(3 * model.q_size + 3 * model.kv_size, inner, hidden)
    num_bytes, how = tokens * widest * size, f"{tokens:,} tokens × {widest:,} × {size} B"
    if experts is not None:
        tile = min(tokens, EXPERT_TILE_TOKENS)
        each = 2 * experts.experts_per_token * hidden + 3 * experts.intermediate_size + hidden
        num_bytes += tile * each * size
        how += f" + experts' {tile:,} × {each:,} × {size} B"
    return LedgerLine("layer", num_bytes, how)


def runtime_line(device: Device, model: ModelShape) -> LedgerLine:
    """Return what the process takes before any weight is loaded."""
    if device.kind == "cpu":
        tokenizer = _TOKENIZER_BYTES * model.vocab_size
        how = (
            f"Python, torch and their libraries {format_bytes(_SERVER_BYTES)} + tokenizer of "
            f"{model.vocab_size:,} tokens {format_bytes(tokenizer)}"
        )
        return LedgerLine("runtime", _SERVER_BYTES + tokenizer, how)
    reserve = device.memory_bytes - device.visible_bytes
    major = device.capability[0] if device.capability else 0
    workspace = _WORKSPACE_BYTES[major in _LARGE_WORKSPACE_MAJORS]
    how = (
        f"driver's reserve {format_bytes(reserve)} + CUDA context {format_bytes(_CONTEXT_BYTES)} + "
        f"cuBLAS workspace {format_bytes(workspace)} + fragmentation "
        f"{format_bytes(_FRAGMENTS_BYTES)}"
    )
    return LedgerLine("runtime", reserve + _CONTEXT_BYTES + workspace + _FRAGMENTS_BYTES, how)


def weights_line(model: ModelShape, dtype: DTypeName) -> LedgerLine:
    """Return the exact bytes of the weights."""
    count, size = num_parameters(model), BYTES_PER_ELEMENT[dtype]
    how = f"{count:,} parameters × {size} B ({dtype})"
    if model.int8_weights:
        how = f"{count:,} parameters: matrices int8 with a scale a row, the rest {size} B ({dtype})"
    if model.traits.skipped_prefix:
        how += "; text decoder"
    return LedgerLine("weights", weight_bytes(model, dtype), how)


def activations_line(model: ModelShape, dtype: DTypeName, step: StepSize) -> LedgerLine:
    """Return the activation estimate as one line that states its terms."""
    terms = activation_lines(model, dtype, step)
    how = " + ".join(f"{term.component} {format_bytes(term.num_bytes)}" for term in terms)
    return LedgerLine("activations", sum(term.num_bytes for term in terms), f"estimate: {how}")


def kv_line(model: ModelShape, dtype: DTypeName, *, block_size: int, num_blocks: int) -> LedgerLine:
    """Return the bytes of the block pool, with the formula of one block."""
    each, head = block_bytes(model, dtype, block_size), f"{model.head_dim}"
    if model.kv_cache_dtype == "auto":
        head += f" × {BYTES_PER_ELEMENT[dtype]} B"
    else:
        head = f"({head} B {model.kv_cache_dtype} + {KV_SCALE_BYTES} B scale)"
    how = (
        f"{num_blocks:,} blocks × {format_bytes(each)} (2 × {model.num_layers} layers × "
        f"{model.num_kv_heads} KV heads × {head} × {block_size} tokens)"
    )
    return LedgerLine("kv-cache", num_blocks * each, how)


def blocks_for(num_tokens: int, block_size: int) -> int:
    """Return the blocks that hold a sequence: 127 tokens in blocks of 16 take 8."""
    return ceil_div(num_tokens, block_size)
