"""Plans, conditions and blocks as text for terminals. Pure: JSON of a QwenDeployment in, lines out.

Called by the commands.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from qwen_engine.planning import format_bytes

Json = Mapping[str, Any]
_BAR = 20  # characters
_WIDTH = 100


def table(
    header: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[int] = ()
) -> list[str]:
    """Return aligned columns; `right` are the numbers of those aligned to the right."""
    lines = [list(header), *map(list, rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(header))]
    return [
        "   ".join(
            cell.rjust(widths[i]) if i in right else cell.ljust(widths[i])
            for i, cell in enumerate(line)
        ).rstrip()
        for line in lines
    ]


def bar(share: float, width: int = _BAR) -> str:
    """Return a share of 1 as a bar; what is more than nothing shows."""
    full = min(width, max(1 if share > 0 else 0, round(share * width)))
    return "█" * full + "·" * (width - full)


def plan_lines(plan: Json) -> list[str]:
    """Return a whole plan: device, kinds of GPU, ledger, flags with reasons, what it holds."""
    device, blocks = plan["device"], plan["blocks"]
    capability = f", capability {device['capability']}" if "capability" in device else ""
    count = f"{device['count']} × " if device["count"] > 1 else ""
    engine = " with vLLM" if plan.get("engine") == "vllm" else ""
    lines = [
        f"{plan['model']['id']} on {count}{device['product']}{engine}: {device['memoryMiB']:,} MiB"
        f"{capability} ({device['source']})",
        "",
        *ledger_lines(plan),
        "",
        *settings_lines(plan),
        "",
        f"{blocks['total']:,} blocks of {blocks['size']} tokens hold {blocks['tokens']:,} tokens: "
        f"{plan['concurrency']} requests of the full {plan['maxModelLen']:,}",
    ]
    if grace := plan.get("grace"):
        lines.append(f"a pod that goes has {grace['seconds']} s: {grace['how']}")
    if pools := plan.get("pools"):
        lines += ["", *pool_lines(pools)]
    lines += [f"note: {note}" for note in plan.get("notes", ())]
    return lines + [f"warning: {warning}" for warning in plan.get("warnings", ())]


def ledger_lines(plan: Json) -> list[str]:
    """Return the ledger with a bar for each line; beside a GPU also what the host gives."""
    total = plan["device"]["memoryMiB"] * 2**20
    rows = [_ledger_row(line, total) for line in plan["ledger"]]
    rows.append(["total", format_bytes(total), "", "the device"])
    host: Sequence[Json] = plan.get("hostLedger", ())
    rows += [[f"host: {line['component']}", line["size"], "", line["how"]] for line in host]
    return table(["MEMORY", "SIZE", "", "HOW"], rows, right=[1])


def settings_lines(plan: Json) -> list[str]:
    """Return the engine's flags with their reasons."""
    rows = [[s["flag"], s["value"], s["reason"]] for s in plan["settings"]]
    return table(["FLAG", "VALUE", "WHY"], rows)


def flag_words(plan: Json) -> str:
    """Return the engine's flags ready to paste."""
    words = []
    for setting in plan["settings"]:
        words.append(setting["flag"])
        words += [] if setting["value"] == "true" else [setting["value"]]
    return " ".join(words)


def pool_lines(pools: Sequence[Json]) -> list[str]:
    """Return the kinds of GPU in the cluster and the plan for each."""
    rows = [
        [
            "→" if pool["chosen"] else "",
            pool["product"],
            f"{pool['memoryMiB']:,}",
            str(pool["gpus"]),
            "yes" if pool["fits"] else "no",
            f"{pool['maxModelLen']:,}" if pool["fits"] else "–",
            f"{pool['tokens']:,}" if pool["fits"] else "–",
        ]
        for pool in pools
    ]
    header = ["", "GPU", "MIB", "GPUS", "FITS", "CONTEXT", "KV TOKENS"]
    return table(header, rows, right=[2, 3, 5, 6])


def accuracy_lines(accuracy: Json) -> list[str]:
    """Return planned and measured, line by line."""
    rows = [
        [line["component"], line["planned"], line["measured"], line["error"]]
        for line in accuracy["lines"]
    ]
    rows.append(["total", accuracy["planned"], accuracy["measured"], accuracy["error"]])
    header = ["MEMORY", "PLANNED", f"TAKEN BY {accuracy['pod']}", "ERROR"]
    return table(header, rows, right=[1, 2, 3])


def condition_lines(conditions: Sequence[Json], ages: Sequence[str]) -> list[str]:
    """Return conditions, each with its sentence below."""
    rows = [
        [c["type"], c["status"], age, c["reason"]] for c, age in zip(conditions, ages, strict=True)
    ]
    head, *lines = table(["CONDITION", "STATUS", "SINCE", "REASON"], rows)
    found = [head]
    for line, condition in zip(lines, conditions, strict=True):
        found += [line, *indent(condition["message"])]
    return found


def blocks_line(blocks: Json) -> str:
    """Return the blocks of all ready pods, with a bar of those in use."""
    total, used, free = blocks["total"], blocks["used"], blocks["free"]
    share = used / total if total else 0.0
    line = f"{bar(share)} {100 * share:.0f}% used: {free:,} of {total:,} blocks free"
    return f"{line}, {blocks['cached']:,} of them hold prefixes" if "cached" in blocks else line


def indent(text: str) -> list[str]:
    """Return a sentence as indented lines of a terminal's width."""
    spaces = "    "
    return textwrap.wrap(text, _WIDTH, initial_indent=spaces, subsequent_indent=spaces)


def duration(seconds: float) -> str:
    """Return a time span in its two largest units, as kubectl does."""
    rest = int(max(0, seconds))
    parts: list[str] = []
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        count, rest = divmod(rest, size)
        parts += [f"{count}{unit}"] if count else []
    return "".join(parts[:2]) or "0s"


def _ledger_row(line: Json, total: int) -> list[str]:
    share = line["bytes"] / total if total else 0.0
    return [line["component"], line["size"], bar(share), line["how"]]
