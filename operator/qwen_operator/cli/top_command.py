"""`kubectl qwen top`: the blocks of every engine at this moment, from the engines themselves.

Asks the pods through the API server, several at once, so it needs the right to `get pods/proxy`
(the built-in role `edit` has it) and no way into the pod network.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from qwen_operator import names
from qwen_operator.cli import render
from qwen_operator.cli.kubectl import Api, EngineError, Kubectl, proxy_path, scope
from qwen_operator.pods import PodFacts, parse_pods
from qwen_operator.vllm_metrics import parse_vllm_blocks, parse_vllm_queue

Json = Mapping[str, Any]
EPILOG = """\
examples:
  kubectl qwen top                 every engine of the namespace, once
  kubectl qwen top chat -w         one QwenDeployment's, again every 2 seconds
  kubectl qwen top -A -o json

exit codes: 0 every pod answered; 1 one did not, or there is none; 2 wrong usage; 3 the cluster
cannot be asked
"""
_AT_ONCE = 16
_COUNTS = ("free", "used", "cached", "total")
_QUEUE = ("running", "waiting", "swapped")


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the command's own flags."""
    add = parser.add_argument
    add("name", nargs="?", help="one QwenDeployment (default: all)")
    add("-A", "--all-namespaces", action="store_true", help="in every namespace")
    add("-w", "--watch", action="store_true", help="show it again and again, until Ctrl-C")
    add("--interval", type=float, default=2.0, metavar="SECONDS",
        help="with --watch: seconds in between (default: 2)")  # fmt: skip


def run(arguments: argparse.Namespace, kubectl: Kubectl) -> int:
    """Show the blocks of all pods; return the exit code."""
    with kubectl.api() as api:
        while True:
            rows = _ask_all(_pods(arguments, kubectl), api)
            if arguments.watch and sys.stdout.isatty():
                print("\x1b[H\x1b[2J", end="")  # a screen of its own each time
            print(_text(rows, arguments))
            sys.stdout.flush()
            if not arguments.watch:
                return 0 if rows and all("blocks" in row for row in rows) else 1
            time.sleep(max(0.1, arguments.interval))


def _pods(arguments: argparse.Namespace, kubectl: Kubectl) -> list[tuple[Json, PodFacts]]:
    selector = f"{names.OWNER_LABEL}={arguments.name}" if arguments.name else names.OWNER_LABEL
    where = scope(arguments.namespace, everywhere=arguments.all_namespaces)
    found = kubectl.get("pods", "-l", selector, *where)["items"]
    pairs = [(pod, facts) for pod in found for facts in parse_pods([pod])]
    return sorted(pairs, key=lambda pair: (pair[0]["metadata"]["namespace"], pair[1].name))


def _ask_all(pods: Sequence[tuple[Json, PodFacts]], api: Api) -> list[dict[str, Any]]:
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return list(pool.map(lambda pair: _ask(pair[0], pair[1], api), pods))


def _ask(pod: Json, facts: PodFacts, api: Api) -> dict[str, Any]:
    """Return a pod's row: its blocks, or why there are none."""
    metadata = pod["metadata"]
    row = {
        "namespace": metadata["namespace"],
        "pod": facts.name,
        "deployment": metadata["labels"][names.OWNER_LABEL],
    }
    if not facts.is_ready:
        why = facts.problem.message if facts.problem else "not ready"
        return {**row, "message": why}
    target = f"{facts.name}:{_port(pod)}"
    path = proxy_path("pods", metadata["namespace"], target, "")
    try:
        return {**row, **(_vllm_figures if facts.is_vllm else _figures)(api, path)}
    except (EngineError, KeyError, TypeError, ValueError) as error:
        return {**row, "message": f"does not answer: {error}"}


def _figures(api: Api, path: str) -> dict[str, Any]:
    stats = api.get(f"{path}/stats")
    return {
        "blocks": {key: int(stats[f"num_{key}_gpu_blocks"]) for key in _COUNTS},
        "swap": {key: int(stats[f"num_{key}_cpu_blocks"]) for key in ("used", "total")},
        "requests": {key: int(stats[f"num_requests_{key}"]) for key in _QUEUE},
    }


def _vllm_figures(api: Api, path: str) -> dict[str, Any]:
    """Return what vLLM tells: no cached blocks, and no swap, which it has not."""
    text = api.text(f"{path}/metrics")
    blocks = parse_vllm_blocks(text)
    if blocks is None:
        raise ValueError("its /metrics has no KV blocks")
    return {"blocks": blocks, "requests": parse_vllm_queue(text)}


def _port(pod: Json) -> int:
    """Return the number of the port named http: the API server knows pods' ports by number only."""
    containers = (pod.get("spec") or {}).get("containers") or ()
    ports = [port for container in containers for port in container.get("ports") or ()]
    named = [port["containerPort"] for port in ports if port.get("name") == names.PORT_NAME]
    return int(named[0]) if named else names.ENGINE_PORT


def _text(rows: Sequence[Json], arguments: argparse.Namespace) -> str:
    known = [row["blocks"] for row in rows if "blocks" in row]
    told = [key for key in _COUNTS if all(key in blocks for blocks in known)]
    total = {key: sum(blocks[key] for blocks in known) for key in told}
    if arguments.output == "json":
        return json.dumps({"pods": rows, "total": total}, indent=2, ensure_ascii=False)
    if not rows:
        return "no engine's pod here; -A looks in every namespace"
    lines = [_cells(row, arguments.all_namespaces) for row in rows]
    if len(known) > 1:
        lines.append(_total_cells(rows, total, arguments.all_namespaces))
    header = ["POD", "", "FREE", "USED", "CACHED", "TOTAL", "RUNNING", "WAITING", "SWAPPED", ""]
    header = ["NAMESPACE", *header] if arguments.all_namespaces else header
    start = 3 if arguments.all_namespaces else 2
    return "\n".join(render.table(header, lines, right=range(start, start + 7)))


def _cells(row: Json, with_namespace: bool) -> list[str]:
    first = [row["namespace"], row["pod"]] if with_namespace else [row["pod"]]
    if "blocks" not in row:
        return [*first, "", *["–"] * 7, row["message"]]
    blocks = row["blocks"]
    share = blocks["used"] / blocks["total"] if blocks["total"] else 0.0
    counts = [f"{blocks[key]:,}" if key in blocks else "–" for key in _COUNTS]
    queue = [str(row["requests"].get(key, "–")) for key in _QUEUE]
    return [*first, render.bar(share, 10), *counts, *queue, ""]


def _total_cells(rows: Sequence[Json], total: Json, with_namespace: bool) -> list[str]:
    asked = [row["requests"] for row in rows if "requests" in row]
    queue = {k: sum(requests.get(k, 0) for requests in asked) for k in _QUEUE}
    whole = {"namespace": "", "pod": "all", "blocks": total, "requests": queue}
    return _cells(whole, with_namespace)
