"""The figures of a run as a table."""

from __future__ import annotations

from statistics import median
from typing import Any

from tests.bench.work import ROWS

# Qwen3-0.6B, from its shape: what one token reads, and the products of one row, without the head
# (a prompt needs the head for its last row only).
WEIGHT_BYTES = 2 * 596_049_920
FLOPS_PER_ROW = 2 * 28 * 15_728_640
FLOPS_PER_PAIR = 4 * 28 * 16 * 128  # a query and a key that it sees


def render(result: dict[str, Any]) -> str:
    """Return the medians, ours against the best peer, and the share of the ceiling reached."""
    parts = [_render_rows(result), _render_ceilings(result)]
    if "servers" in result:
        parts.append(_render_servers(result["servers"]))
    return "\n".join(parts)


def _render_rows(result: dict[str, Any]) -> str:
    names = list(next(iter(result["rows"].values()))) if result["rows"] else []
    lines = ["| work | " + " | ".join(names) + " | ours ÷ best peer | of the ceiling |"]
    lines.append("|---" * (len(names) + 3) + "|")
    units = {row.name: row.unit for row in ROWS}
    for name, samples in result["rows"].items():
        medians = {engine: median(values) for engine, values in samples.items() if values}
        peers = [value for engine, value in medians.items() if engine != "ours"]
        best = (min if units[name] == "s" else max)(peers) if peers else None
        ratio = f"{medians['ours'] / best:.2f}" if best else "–"
        shown = " | ".join(
            f"{medians[engine]:.3g} {units[name]}" if engine in medians else "–" for engine in names
        )
        share = _share_of_ceiling(name, medians["ours"], result["ceilings"])
        lines.append(f"| {name} | {shown} | {ratio} | {share} |")
    return "\n".join(lines)


def _share_of_ceiling(name: str, ours: float, ceilings: list[dict[str, Any]]) -> str:
    if name == "decode, one stream":
        return f"{ours * WEIGHT_BYTES / _bandwidth(ceilings):.0%} of bandwidth"
    if name.startswith("first token"):
        rows = int(name.split(", ")[1].split("-", maxsplit=1)[0])
        flops = rows * FLOPS_PER_ROW + rows * (rows + 1) // 2 * FLOPS_PER_PAIR
        return f"{flops / ours / max(_gemm(ceilings).values()):.0%} of GEMM"
    return "–"


def _bandwidth(ceilings: list[dict[str, Any]]) -> float:
    return median(one["read_bytes_per_second"] for one in ceilings)


def _gemm(ceilings: list[dict[str, Any]]) -> dict[str, float]:
    names = ceilings[0]["gemm_flops_per_second"]
    return {name: median(one["gemm_flops_per_second"][name] for one in ceilings) for name in names}


def _render_ceilings(result: dict[str, Any]) -> str:
    ceilings = result["ceilings"]
    rates = ", ".join(f"{name} {rate / 1e9:.0f}" for name, rate in _gemm(ceilings).items())
    return f"\nread {_bandwidth(ceilings) / 1e9:.1f} GB/s; packed GEMM, GFLOP/s: {rates}\n"


def _render_servers(servers: dict[str, dict[str, float]]) -> str:
    lines = ["| over HTTP | " + " | ".join(servers) + " |", "|---" * (len(servers) + 1) + "|"]
    for name in servers["ours"]:
        shown = " | ".join(f"{figures[name]:.3g}" for figures in servers.values())
        lines.append(f"| {name} | {shown} |")
    return "\n".join(lines)
