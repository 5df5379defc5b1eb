"""The figures of both sides as people show them: one row a question, one column a side."""

from __future__ import annotations

from typing import Any

from qwen_engine.comparison.work import NUM_ROUNDS, Figures
from qwen_engine.planning import format_bytes

_NOTES = """\
Each side ran in processes of its own, one at a time, with the same type, threads and prompts.
Requests at once: the height of memory with {few} and with {many} of them says what one takes; the
rest is how many of these fit. Memory is all that the process takes, weights included."""


def summarise(by_work: dict[str, Figures], memory_bytes: int) -> dict[str, float | None]:
    """Work out the rows of one side from the figures of its processes."""
    speed = by_work["speed"]
    return {
        **speed,
        "most_requests_at_once": _most_at_once(by_work["few"], by_work["many"], memory_bytes),
        "longest_context_peak_bytes": by_work["longest"]["peak_bytes"],
        "dialogue_growth_bytes": by_work["dialogue"]["growth_bytes"],
    }


def _most_at_once(few: Figures, many: Figures, memory_bytes: int) -> int | None:
    """Return how many requests fit; None if one takes too little to be measured."""
    more = many["num_requests"] - few["num_requests"]
    bytes_each = (many["peak_bytes"] - few["peak_bytes"]) / more
    if bytes_each <= 0:
        return None
    return max(0, int(few["num_requests"] + (memory_bytes - few["peak_bytes"]) / bytes_each))


def render(result: dict[str, Any]) -> str:
    """Return the table with a heading above and how it was measured below."""
    load = result["load"]
    names = [f"{side} {result['versions'][side]}" for side in result["sides"]]
    rows = [["", *names], *_rows(result)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    lines.insert(1, "  ".join("─" * width for width in widths))
    heading = (
        f"{result['model']}: {result['dtype']} on {result['device']}, "
        f"{result['num_threads']} threads; {load['num_prompts']} requests of "
        f"{load['input_len']} → {load['output_len']} tokens, {load['at_once']} at once"
    )
    notes = _NOTES.format(few=load["at_once"], many=2 * load["at_once"])
    return "\n".join([heading, "", *lines, "", notes])


def _rows(result: dict[str, Any]) -> list[list[str]]:
    sides = result["sides"].values()
    memory, longest = format_bytes(result["memory_bytes"]), result["load"]["longest_len"]
    return [
        ["time to first token", *(
            f"{s['first_token_seconds']:.3f} s ± {s['first_token_deviation_seconds']:.3f}"
            for s in sides)],
        ["throughput", *(f"{s['tokens_per_second']:,.1f} tokens/s" for s in sides)],
        [f"most requests at once in {memory}", *(_count(s["most_requests_at_once"])
                                                 for s in sides)],
        [f"memory at {longest:,} tokens of context", *(
            format_bytes(s["longest_context_peak_bytes"]) for s in sides)],
        [f"growth over {NUM_ROUNDS} rounds of dialogue", *(
            _growth(s["dialogue_growth_bytes"]) for s in sides)],
    ]  # fmt: skip


def _count(count: int | None) -> str:
    return "too small to measure" if count is None else f"{count:,}"


def _growth(num_bytes: int) -> str:
    return f"{num_bytes / 2**20:+,.1f} MiB"
