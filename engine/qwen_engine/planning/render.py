"""A plan as JSON for `status.plan` and as a table for terminals."""

from __future__ import annotations

import shlex
from typing import Any

from qwen_engine.planning.device import Device
from qwen_engine.planning.errors import DoesNotFitError
from qwen_engine.planning.ledger import LedgerLine
from qwen_engine.planning.plan import Plan
from qwen_engine.planning.quantities import MIB, format_bytes
from qwen_engine.planning.weights import num_parameters

_BAR_CELLS = 20


def plan_to_dict(plan: Plan) -> dict[str, Any]:
    """Return the plan in camelCase, without floats: exactly what `status.plan` holds."""
    return {
        "model": {
            "id": plan.model.model_id,
            "architecture": plan.model.architecture,
            "parameters": num_parameters(plan.model),
            "dtype": plan.dtype,
        },
        "device": _device_to_dict(plan.device, plan.tensor_parallel_size),
        "ledger": _ledger_to_list(plan.ledger),
        "hostLedger": _ledger_to_list(plan.host_ledger),
        "settings": [
            {"flag": setting.flag, "value": setting.value, "reason": setting.reason}
            for setting in plan.settings
        ],
        "blocks": {
            "size": plan.block_size,
            "total": plan.num_blocks,
            "bytesPerBlock": plan.block_bytes,
            "tokens": plan.kv_tokens,
        },
        "maxModelLen": plan.max_model_len,
        "concurrency": _concurrency(plan),
        "loadBytes": plan.load_bytes,
        "warnings": list(plan.warnings),
        **({"engine": plan.engine} if plan.engine != "qwen" else {}),
    }


def refusal_to_dict(error: DoesNotFitError) -> dict[str, Any]:
    """Return a refusal with its ways out, for programs."""
    return {
        "fits": False,
        "message": str(error),
        "largestModelLen": error.largest_model_len,
        "waysOut": [
            {"kind": way.kind, "sentence": way.sentence, "change": dict(way.change)}
            for way in error.ways
        ],
    }


def _ledger_to_list(ledger: tuple[LedgerLine, ...]) -> list[dict[str, Any]]:
    return [
        {
            "component": line.component,
            "bytes": line.num_bytes,
            "size": format_bytes(line.num_bytes),
            "how": line.how,
        }
        for line in ledger
    ]


def _device_to_dict(device: Device, count: int) -> dict[str, Any]:
    found: dict[str, Any] = {
        "kind": device.kind,
        "product": device.product,
        "count": 0 if device.kind == "cpu" else count,
        "memoryMiB": device.memory_bytes // MIB,
        "source": device.source,
    }
    if device.capability is not None:
        found["capability"] = f"{device.capability[0]}.{device.capability[1]}"
    return found


def _concurrency(plan: Plan) -> str:
    return f"{plan.kv_tokens / plan.max_model_len:.1f}"


def render_plan(plan: Plan) -> str:
    """Return the plan as two aligned tables: where the bytes go, and each flag with its reason."""
    device = plan.device
    capability = f", capability {device.capability[0]}.{device.capability[1]}" if (
        device.capability
    ) else ""  # fmt: skip
    count, engine = plan.tensor_parallel_size, " with vLLM" if plan.engine == "vllm" else ""
    on = f"{count} × {device.product}" if count > 1 else device.product
    lines = [
        f"{plan.model.model_id} on {on}{engine}: {format_bytes(device.memory_bytes)}"
        f"{capability} ({device.source})",
        "",
        *_table(
            ("LEDGER", "SIZE", "SHARE", "HOW"),
            [_ledger_row(line, device.memory_bytes) for line in plan.ledger]
            + [("total", format_bytes(device.memory_bytes), "", "the device")]
            + [
                (line.component, format_bytes(line.num_bytes), "", line.how)
                for line in plan.host_ledger
            ],
            right=1,
        ),
        "",
        *_table(
            ("FLAG", "VALUE", "REASON"),
            [(setting.flag, setting.value, setting.reason) for setting in plan.settings],
        ),
        "",
        f"{plan.num_blocks:,} blocks of {plan.block_size} tokens hold {plan.kv_tokens:,} tokens: "
        f"{_concurrency(plan)} requests of the full {plan.max_model_len:,}",
        *(f"warning: {warning}" for warning in plan.warnings),
    ]
    return "\n".join(lines)


def render_flags(plan: Plan) -> str:
    """Return the command that starts the planned engine, ready to paste."""
    command = ["vllm", "serve"] if plan.engine == "vllm" else ["qwen-engine", "serve"]
    return shlex.join([*command, plan.model.model_id, *plan.args()])


def _ledger_row(line: LedgerLine, total: int) -> tuple[str, ...]:
    return line.component, format_bytes(line.num_bytes), _bar(line.num_bytes, total), line.how


def _bar(part: int, whole: int) -> str:
    """Return a bar of eighths of a cell, as wide as a part is of the whole."""
    eighths = round(part / whole * _BAR_CELLS * 8) if whole else 0
    full, rest = divmod(eighths, 8)
    return "█" * full + ("▏▎▍▌▋▊▉"[rest - 1] if rest else "")


def _table(
    header: tuple[str, ...], rows: list[tuple[str, ...]], right: int | None = None
) -> list[str]:
    last = len(header) - 1
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(last)]
    lines = []
    for row in [header, *rows]:
        cells = [
            row[i].rjust(widths[i]) if i == right else row[i].ljust(widths[i]) for i in range(last)
        ]
        lines.append("  ".join([*cells, row[last]]).rstrip())
    return lines
