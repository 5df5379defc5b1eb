"""vLLM's price as lines of a ledger, each with its arithmetic in words."""

from __future__ import annotations

from qwen_engine.planning.ledger import LedgerLine
from qwen_engine.planning.quantities import format_bytes
from qwen_engine.planning.vllm import VllmPrice, kv_element_bytes, token_bytes
from qwen_engine.planning.vllm_memory import (
    activation_terms,
    deepstack_bytes,
    rotary_bytes,
    vllm_tower_bytes,
)
from qwen_engine.planning.vllm_step import VllmStart
from qwen_engine.planning.weights import num_parameters


def vllm_lines(start: VllmStart, price: VllmPrice) -> list[LedgerLine]:
    """Return the lines that vLLM's KV cache leaves room for; they add up to the byte."""
    tower, graphs = vllm_tower_bytes(start), price.graph_bytes
    lines = [
        LedgerLine("runtime", price.non_torch_bytes, _runtime(start)),
        LedgerLine("weights", price.weight_bytes - tower, _weights(start, price)),
    ]
    if tower:
        how = f"tower of {start.model.tower.depth if start.model.tower else 0} blocks, 16 bits"
        lines.append(LedgerLine("vision-tower", tower, how))
    lines.append(LedgerLine("activations", price.activation_bytes, _activations(start, price)))
    if start.version.counts_graphs and graphs:
        layers, seqs = start.model.num_layers, price.step.max_num_seqs
        how = f"estimate: captured batches up to {min(512, 2 * seqs)} × {layers} layers"
        lines.append(LedgerLine("cuda-graphs", graphs, how))
    return lines


def vllm_kv_line(start: VllmStart, num_blocks: int) -> LedgerLine:
    """Return the block pool of one GPU, with the formula of one block."""
    model, flags = start.model, start.flags
    each = int(token_bytes(model, flags) * flags.block_size)
    name, heads = flags.kv_cache_dtype, max(1, model.num_kv_heads // flags.tensor_parallel_size)
    element = f"{kv_element_bytes(name):g} B" + (f" {name}" if name != "auto" else "")
    how = (
        f"{num_blocks:,} blocks × {format_bytes(each)} (2 × {model.num_layers} layers × "
        f"{heads} KV heads × {model.head_dim} × {element} × {flags.block_size} tokens)"
    )
    return LedgerLine("kv-cache", num_blocks * each, how)


def _runtime(start: VllmStart) -> str:
    parts = ["CUDA context"]
    if start.flags.tensor_parallel_size > 1:
        parts.append(f"NCCL among {start.flags.tensor_parallel_size} GPUs")
    if start.model.quantization and start.version.loads_packed_kernels:
        parts.append("workspaces of the kernels for packed weights")
    return " + ".join(parts)


def _weights(start: VllmStart, price: VllmPrice) -> str:
    model, t = start.model, start.flags.tensor_parallel_size
    packing = model.quantization
    how = f"{num_parameters(model):,} parameters, "
    how += f"{packing.method} {packing.bits:g} bits" if packing else start.dtype
    how += f", one of {t} shards" if t > 1 else ""
    how += f"; rotary table {format_bytes(rotary_bytes(model))}"
    stacked = deepstack_bytes(model, price.step)
    return how + (f"; DeepStack buffers {format_bytes(stacked)}" if stacked else "")


def _activations(start: VllmStart, price: VllmPrice) -> str:
    terms = activation_terms(start, price.step)
    others = ", ".join(
        f"{name} {format_bytes(size)}" for name, size in terms.items() if name != price.peak
    )
    step = price.step
    what = {
        "text": f"{step.max_num_batched_tokens:,} tokens through a layer",
        "sampler": f"{step.max_num_seqs:,} sequences × {start.model.vocab_size:,} logits",
        "vision": "the largest picture through the tower",
    }[price.peak]
    return f"estimate: {price.peak}, {what}; others: {others}"
