"""How near the planner comes to a record, beside two floors that know nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from qwen_engine.planning.vllm import VllmPrice, price_vllm, token_bytes
from qwen_engine.planning.vllm_step import VllmStart
from qwen_engine.planning.weights import num_parameters, num_tower_parameters
from tests.cases.records import GIB, Record

# Name of a score -> the figure it needs.
NEEDS = {
    "weights 2%": "weights",
    "weights 1%": "weights",
    "kv 10%": "kv_from_product_and_flags",
    "kv wide": "kv_from_product_and_flags",
    "tokens 1%": "kv_gib_to_tokens",
    "starts": "outcome",
}


@dataclass(slots=True)
class Scored:
    """A record's predictions and which scores they meet; a score that does not apply is absent."""

    record: Record
    price: VllmPrice | None
    meets: dict[str, bool] = field(default_factory=dict)
    naive: dict[str, bool] = field(default_factory=dict)
    weights_error: float | None = None  # relative
    kv_error_gib: float | None = None
    kv_error: float | None = None  # relative


def score(record: Record) -> Scored:
    """Score one record."""
    start = record.start
    price = price_vllm(start) if start and start.device.memory_bytes else None
    scored = Scored(record, price)
    if start is not None:
        _score_weights(scored, start, price)
        _score_tokens(scored, start)
    if price is not None and start is not None:
        _score_kv(scored, start, price)
    if "outcome" in record.score_on:
        starts = record.right_outcome == "ok"
        scored.meets["starts"] = price is not None and (price.outcome == "ok") == starts
        scored.naive["starts"] = _naive_starts(start) == starts
    return scored


def observed_kv_gib(record: Record) -> float | None:
    """Return the KV figure of one GPU: printed, or from the tokens printed."""
    found = record.observed.get("kv_cache_gib")
    if found is not None:
        return float(found)
    tokens = record.observed.get("kv_tokens")
    if tokens is None or record.start is None:
        return None
    return tokens * token_bytes(record.start.model, record.start.flags) / GIB


def _score_weights(scored: Scored, start: VllmStart, price: VllmPrice | None) -> None:
    if "weights" not in scored.record.score_on:
        return
    planned = price or price_vllm(start)
    seen = scored.record.observed["weights_gib"]
    scored.weights_error = planned.weight_bytes / GIB / seen - 1
    naive = _naive_bytes(start) / GIB / seen - 1
    for percent in (2, 1):
        name = f"weights {percent}%"
        scored.meets[name] = abs(scored.weights_error) <= percent / 100
        scored.naive[name] = abs(naive) <= percent / 100


def _score_tokens(scored: Scored, start: VllmStart) -> None:
    if "kv_gib_to_tokens" not in scored.record.score_on:
        return
    seen = scored.record.observed
    block = start.flags.block_size
    tokens = seen.get("kv_tokens") or seen["gpu_blocks"] * block
    each = token_bytes(start.model, start.flags) * block
    planned = int(seen["kv_cache_gib"] * GIB / each) * block
    scored.meets["tokens 1%"] = abs(planned / tokens - 1) <= 0.01


def _score_kv(scored: Scored, start: VllmStart, price: VllmPrice) -> None:
    seen = observed_kv_gib(scored.record)
    if "kv_from_product_and_flags" not in scored.record.score_on or seen is None:
        return
    budget = price.budget_bytes / GIB
    scored.kv_error_gib = price.kv_bytes / GIB - seen
    scored.kv_error = scored.kv_error_gib / abs(seen)
    naive = budget - _naive_bytes(start) / GIB - seen
    for found, error in ((scored.meets, scored.kv_error_gib), (scored.naive, naive)):
        found["kv 10%"] = abs(error) <= 0.1 * abs(seen)
        found["kv wide"] = abs(error) <= max(0.1 * abs(seen), 0.03 * budget)


def _naive_bytes(start: VllmStart) -> float:
    """Parameters × bytes × 1.2, per GPU: what calculators on the web do."""
    model, flags = start.model, start.flags
    bits = model.quantization.bits if model.quantization else 16
    count = num_parameters(model) + num_tower_parameters(model)
    ranks = flags.tensor_parallel_size * flags.pipeline_parallel_size
    return count * bits / 8 * 1.2 / ranks


def _naive_starts(start: VllmStart | None) -> bool:
    if start is None or not start.device.memory_bytes:
        return True
    share = start.flags.gpu_memory_utilization or 0.9
    return _naive_bytes(start) <= start.device.memory_bytes * share


def totals(scored: Iterable[Scored]) -> dict[str, Mapping[str, int]]:
    """Return for each score how many records it applies to, are met, and the floors meet."""
    found: dict[str, Mapping[str, int]] = {}
    rows = list(scored)
    for name in NEEDS:
        applies = [row for row in rows if name in row.meets]
        found[name] = {
            "of": len(applies),
            "met": sum(row.meets[name] for row in applies),
            "naive": sum(row.naive.get(name, False) for row in applies),
            "ok": sum(row.record.right_outcome == "ok" for row in applies)
            if name == "starts"
            else 0,
        }
    return found
