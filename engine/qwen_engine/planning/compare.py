"""One model on several GPUs side by side: does it fit, how many tokens, how fast at best.

Called by `qwen-engine plan --compare`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from qwen_engine.planning.demands import Demands
from qwen_engine.planning.device import Device
from qwen_engine.planning.errors import DoesNotFitError, PlanningError
from qwen_engine.planning.plan import Plan, make_plan
from qwen_engine.planning.shape import BYTES_PER_ELEMENT, ModelShape
from qwen_engine.planning.weights import layer_matrices, matrix_bytes, table_bytes

# From the 12 GB card at home to the newest rack.
USUAL_GPUS = (
    "NVIDIA-GeForce-RTX-3060", "Tesla-T4", "NVIDIA-GeForce-RTX-4090", "NVIDIA-L4", "NVIDIA-A10G",
    "NVIDIA-GeForce-RTX-5090", "NVIDIA-L40S", "NVIDIA-A100-SXM4-40GB", "NVIDIA-A100-SXM4-80GB",
    "NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition", "NVIDIA-H100-80GB-HBM3", "NVIDIA-H200",
    "NVIDIA-B200",
)  # fmt: skip


_CONCURRENCY = 2  # the column with decimals


@dataclass(frozen=True, slots=True)
class Comparison:
    """What one GPU makes of a model.

    Attributes:
        plan: None where it does not fit; `problem` then says why.
        concurrency: requests of the compared length that the KV cache holds.
        tokens_per_second: of one request at that length, if nothing but reading weights and KV
            took time; None if the card's bandwidth is unknown.
    """

    device: Device
    plan: Plan | None
    problem: str = ""
    concurrency: float = 0.0
    tokens_per_second: float | None = None


def compare(
    model: ModelShape, devices: Iterable[Device], demands: Demands
) -> tuple[int, list[Comparison]]:
    """Return the compared length in tokens, and each device in the order given.

    The length is the demanded one, else the longest that every GPU which fits has planned.
    """
    made = [(device, _try(model, device, demands)) for device in devices]
    planned = [plan.max_model_len for _, plan in made if isinstance(plan, Plan)]
    length = demands.max_model_len or min(planned, default=0)
    return length, [_row(device, plan, length) for device, plan in made]


def _try(model: ModelShape, device: Device, demands: Demands) -> Plan | PlanningError:
    try:
        return make_plan(model, device, demands)
    except PlanningError as error:
        return error


def _row(device: Device, plan: Plan | PlanningError, length: int) -> Comparison:
    if isinstance(plan, DoesNotFitError):
        most = plan.largest_model_len
        problem = f"at most {most:,} tokens" if most else "too little memory for one request"
        return Comparison(device, None, problem)
    if isinstance(plan, PlanningError):
        return Comparison(device, None, str(plan))
    return Comparison(
        device,
        plan,
        concurrency=plan.kv_tokens / length,
        tokens_per_second=_bound(plan, length),
    )


def _bound(plan: Plan, length: int) -> float | None:
    """Return bandwidth over the bytes that one token reads on each GPU."""
    if plan.device.bandwidth_gbs is None:
        return None
    kv = plan.block_bytes // plan.block_size * length
    return plan.device.bandwidth_gbs * 1e9 / (_read_bytes(plan) + kv)


def _read_bytes(plan: Plan) -> int:
    """Return the weights one token reads on one GPU: of the experts only those chosen."""
    model, size, t = plan.model, BYTES_PER_ELEMENT[plan.dtype], plan.tensor_parallel_size
    chosen = model.experts.experts_per_token / model.experts.num_experts if model.experts else 1
    layer = sum(
        sum(matrix_bytes(model, matrix, size)) * (chosen if matrix.count > 1 else 1)
        for matrix in layer_matrices(model, t)
    )
    head = table_bytes(model, size, t) // (1 if model.tie_word_embeddings else 2)
    return int(model.num_layers * layer) + head


def comparison_to_list(length: int, rows: Sequence[Comparison]) -> list[dict[str, Any]]:
    """Return the comparison for JSON and YAML."""
    return [
        {
            "product": row.device.product,
            "memoryMiB": row.device.memory_bytes // 2**20,
            "fits": row.plan is not None,
            **({} if row.plan is None else _figures(row, row.plan, length)),
            **({"problem": row.problem} if row.problem else {}),
        }
        for row in rows
    ]


def _figures(row: Comparison, plan: Plan, length: int) -> dict[str, Any]:
    found = {
        "gpus": plan.tensor_parallel_size,
        "maxModelLen": plan.max_model_len,
        "kvTokens": plan.kv_tokens,
        "comparedLength": length,
        "concurrency": f"{row.concurrency:.1f}",
    }
    if row.tokens_per_second is not None:
        found["tokensPerSecondBound"] = int(row.tokens_per_second)
    return found


def render_comparison(model: ModelShape, length: int, rows: Sequence[Comparison]) -> str:
    """Return an aligned table; the best of each column has a star."""
    header = (
        "GPU", "FITS", "GPUS", "CONTEXT", "KV TOKENS", f"REQUESTS OF {length:,}", "TOKENS/S AT MOST"
    )  # fmt: skip
    values = [_values(row) for row in rows]
    best = [_winner([found[i] for found in values if found[i] is not None]) for i in range(4)]
    table: list[tuple[str, ...]] = [header]
    for row, found in zip(rows, values, strict=True):
        gpus = str(row.plan.tensor_parallel_size) if row.plan else ""
        cells = [_cell(value, best[i], i) for i, value in enumerate(found)]
        fits = "yes" if row.plan else f"no: {row.problem}"
        table.append((row.device.product, fits, gpus, *cells) if row.plan else (
            row.device.product, fits, "", "", "", "", ""
        ))  # fmt: skip
    widths = [max(len(line[i]) for line in table if i != 1 or line[2]) for i in range(len(header))]
    lines = [_aligned(line, widths) for line in table]
    note = (
        "TOKENS/S AT MOST: one request, if nothing but reading weights and KV took time. "
        "* best of its column"
    )
    return "\n".join([f"{model.model_id} side by side", "", *lines, "", note])


def _values(row: Comparison) -> tuple[float | None, ...]:
    if row.plan is None:
        return (None, None, None, None)
    return (
        row.plan.max_model_len, row.plan.kv_tokens, row.concurrency, row.tokens_per_second
    )  # fmt: skip


def _winner(column: Sequence[float | None]) -> float | None:
    """Return the largest value; None where all are the same."""
    known = [value for value in column if value is not None]
    return max(known) if len(set(known)) > 1 else None


def _cell(value: float | None, best: float | None, column: int) -> str:
    if value is None:
        return "?"
    text = f"{value:,.1f}" if column == _CONCURRENCY else f"{value:,.0f}"
    return f"{text} *" if value == best else f"{text}  "


def _aligned(line: Sequence[str], widths: Sequence[int]) -> str:
    first, fits, *cells = line
    if not any(cells):
        return f"{first.ljust(widths[0])}  {fits}"
    shown = [cell.rjust(width) for cell, width in zip(cells, widths[2:], strict=True)]
    return "  ".join([first.ljust(widths[0]), fits.ljust(widths[1]), *shown]).rstrip()
