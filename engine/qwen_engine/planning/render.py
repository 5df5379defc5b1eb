"""A plan as JSON for `status.plan` and as a table for terminals."""

from __future__ import annotations

from typing import Any

from qwen_engine.planning.device import Device
from qwen_engine.planning.ledger import LedgerLine
from qwen_engine.planning.plan import Plan
from qwen_engine.planning.quantities import MIB, format_bytes
from qwen_engine.planning.weights import num_parameters


def plan_to_dict(plan: Plan) -> dict[str, Any]:
    """Return the plan in camelCase, without floats: exactly what `status.plan` holds."""
    return {
        "model": {
            "id": plan.model.model_id,
            "architecture": plan.model.architecture,
            "parameters": num_parameters(plan.model),
            "dtype": plan.dtype,
        },
        "device": _device_to_dict(plan.device),
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


def _device_to_dict(device: Device) -> dict[str, Any]:
    found: dict[str, Any] = {
        "kind": device.kind,
        "product": device.product,
        "count": 0 if device.kind == "cpu" else 1,
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
    lines = [
        f"{plan.model.model_id} on {device.product}: {format_bytes(device.memory_bytes)}"
        f"{capability} ({device.source})",
        "",
        *_table(
            ("LEDGER", "SIZE", "HOW"),
            [(line.component, format_bytes(line.num_bytes), line.how) for line in plan.ledger]
            + [("total", format_bytes(device.memory_bytes), "the device")]
            + [
                (line.component, format_bytes(line.num_bytes), line.how)
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


def _table(
    header: tuple[str, str, str], rows: list[tuple[str, str, str]], right: int | None = None
) -> list[str]:
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(2)]
    lines = []
    for row in [header, *rows]:
        cells = [
            row[i].rjust(widths[i]) if i == right else row[i].ljust(widths[i]) for i in range(2)
        ]
        lines.append("  ".join([*cells, row[2]]).rstrip())
    return lines
