"""The Grafana dashboard in the chart: written from the panels below, by `make chart`.

`python -m tests.setup.chart_dashboard` rewrites it. Every query is run against a real Prometheus by
tests/monitoring.
"""

import json
import sys
from dataclasses import dataclass
from typing import Any

from tests.cluster.paths import REPOSITORY

TARGET = REPOSITORY / "charts" / "qwen-operator" / "monitoring" / "dashboard.json"
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_WIDTH, _HEIGHT = 8, 8  # of Grafana's 24 columns
_OF = '{namespace=~"$namespace", deployment=~"$deployment"}'


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel: title, unit in Grafana's words, (legend, query) for each line."""

    title: str
    unit: str
    lines: tuple[tuple[str, str], ...]
    kind: str = "timeseries"


def _of(name: str, *more: str) -> str:
    return name + _OF[:-1] + "".join(f", {part}" for part in more) + "}"


def _sum(expression: str, *by: str) -> str:
    return f"sum by ({', '.join(('namespace', 'deployment', *by))}) ({expression})"


def _quantile(share: float, series: str) -> str:
    rate = f"rate({_of(f'{series}_bucket')}[$__rate_interval])"
    return f"histogram_quantile({share}, {_sum(rate, 'le')})"


def _rate(series: str) -> str:
    return _sum(f"rate({_of(series)}[$__rate_interval])")


_MEASURED = _of("qwen_memory_bytes", 'kind="measured"')
_PLANNED = _of("qwen_memory_bytes", 'kind="planned"')
_WHO = "{{namespace}}/{{deployment}}"
ROWS: dict[str, tuple[Panel, ...]] = {
    "Pool": (
        Panel("Free blocks", "percentunit", (
            (_WHO, _sum(_of("qwen_kv_blocks", 'state="free"'))
             + " / " + _sum(_of("qwen_kv_blocks", 'state="total"'))),
        )),
        Panel("Blocks", "short", (
            (f"{_WHO} {{{{state}}}}", _sum(_of("qwen_kv_blocks"), "state")),
        )),
        Panel("Blocks taken and given back", "short", (
            (f"{_WHO} taken", _rate("qwen_kv_blocks_allocated_total")),
            (f"{_WHO} given back", _rate("qwen_kv_blocks_freed_total")),
        )),
    ),
    "Plan and measurement": (
        Panel("Memory planned and measured", "bytes", (
            ("{{component}} {{kind}}",
             f"max by (component, kind) ({_of('qwen_memory_bytes')})"),
        ), "bargauge"),
        Panel("Memory beyond the plan", "percentunit", (
            (f"{_WHO} {{{{component}}}}",
             f"{_MEASURED} / ignoring (kind) ({_PLANNED} > 0) - 1"),
        )),
        Panel("Model loaded", "percentunit", (
            (_WHO, f"min by (namespace, deployment) ({_of('qwen_model_load_progress')})"),
        )),
    ),
    "Queue": (
        Panel("Requests", "short", (
            (f"{_WHO} running", _sum(_of("vllm:num_requests_running"))),
            (f"{_WHO} waiting", _sum(_of("vllm:num_requests_waiting"))),
            (f"{_WHO} swapped", _sum(_of("qwen_requests_swapped"))),
        )),
        Panel("Preempted and refused", "reqps", (
            (f"{_WHO} preempted", _rate("vllm:num_preemptions_total")),
            (f"{_WHO} refused", _rate("vllm:admission_rejections_total")),
        )),
        Panel("Prefix cache", "percentunit", (
            (_WHO, _rate("vllm:prefix_cache_hits_total")
             + " / (" + _rate("vllm:prefix_cache_queries_total") + " > 0)"),
        )),
    ),
    "Latency": (
        Panel("Time to first token", "s", (
            (f"{_WHO} p50", _quantile(0.5, "vllm:time_to_first_token_seconds")),
            (f"{_WHO} p95", _quantile(0.95, "vllm:time_to_first_token_seconds")),
        )),
        Panel("Time between tokens", "s", (
            (f"{_WHO} p50", _quantile(0.5, "vllm:inter_token_latency_seconds")),
            (f"{_WHO} p95", _quantile(0.95, "vllm:inter_token_latency_seconds")),
        )),
        Panel("Whole requests, and their wait", "s", (
            (f"{_WHO} p95", _quantile(0.95, "vllm:e2e_request_latency_seconds")),
            (f"{_WHO} waited, p95", _quantile(0.95, "vllm:request_queue_time_seconds")),
        )),
        Panel("Tokens", "short", (
            (f"{_WHO} generated/s", _rate("vllm:generation_tokens_total")),
            (f"{_WHO} read/s", _rate("vllm:prompt_tokens_total")),
        )),
        Panel("Requests that ended", "reqps", (
            ("{{finished_reason}}",
             f"sum by (finished_reason) (rate({_of('vllm:request_success_total')}"
             "[$__rate_interval]))"),
        )),
    ),
    "Scaling": (
        Panel("Replicas, and how many are wanted for what reason", "short", (
            (f"{_WHO} replicas", _of("qwen_operator_replicas")),
            (f"{_WHO} wanted: {{{{reason}}}}", _of("qwen_operator_replicas_wanted")),
        )),
        Panel("Decisions", "short", (
            (f"{_WHO} {{{{direction}}}}: {{{{reason}}}}",
             f"increase({_of('qwen_operator_scaling_decisions_total')}[$__range])"),
        )),
        Panel("Pods", "short", (
            (f"{_WHO} {{{{state}}}}", _of("qwen_operator_pods")),
        )),
        Panel("Seconds until no block is free, and a cold start", "s", (
            (f"{_WHO} exhausted in", _of("qwen_operator_seconds_to_exhaustion")),
            (f"{_WHO} cold start", _of("qwen_operator_cold_start_seconds")),
        )),
        Panel("Blocks per second, net", "short", (
            (_WHO, _of("qwen_operator_net_blocks_per_second")),
        )),
    ),
    "Operator": (
        Panel("Conditions that are not as they should be", "short", (
            (f"{_WHO} {{{{condition}}}}={{{{status}}}} {{{{reason}}}}",
             _of("qwen_operator_condition", 'condition="Degraded"', 'status="True"')
             + " or " + _of("qwen_operator_condition", 'condition!~"Degraded|Progressing"',
                            'status="False"', 'reason!="ScaledToZero"')),
        )),
        Panel("Looks at QwenDeployments", "ops", (
            ("{{result}}",
             "sum by (result) (rate(qwen_operator_reconciliations_total[$__rate_interval]))"),
        )),
        Panel("Engines' answers that were not used", "ops", (
            ("{{cause}}",
             "sum by (cause) (rate(qwen_operator_scrape_misses_total[$__rate_interval]))"),
        )),
    ),
}  # fmt: skip


def build_dashboard() -> dict[str, Any]:
    """Return the dashboard as Grafana imports it."""
    panels: list[dict[str, Any]] = []
    top = 0
    for title, row in ROWS.items():
        place = {"x": 0, "y": top, "w": 24, "h": 1}
        panels.append({"type": "row", "title": title, "gridPos": place, "panels": []})
        top += 1
        for number, panel in enumerate(row):
            column, line = number % 3, number // 3
            place = {"x": column * _WIDTH, "y": top + line * _HEIGHT, "w": _WIDTH, "h": _HEIGHT}
            panels.append(_panel(panel, place))
        top += -(-len(row) // 3) * _HEIGHT
    numbered = [{**panel, "id": number} for number, panel in enumerate(panels, start=1)]
    return {
        "uid": "qwen-operator",
        "title": "Qwen",
        "tags": ["qwen"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [_datasource(), *_variables()]},
        "panels": numbered,
    }


def render() -> str:
    """Return the file's content."""
    return json.dumps(build_dashboard(), indent=1) + "\n"


def _panel(panel: Panel, place: dict[str, int]) -> dict[str, Any]:
    targets = [
        {"refId": chr(ord("A") + n), "datasource": _SOURCE, "expr": query, "legendFormat": legend}
        for n, (legend, query) in enumerate(panel.lines)
    ]
    return {
        "type": panel.kind,
        "title": panel.title,
        "datasource": _SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": targets,
    }


def _datasource() -> dict[str, Any]:
    return {"name": "datasource", "type": "datasource", "query": "prometheus"}


def _variables() -> list[dict[str, Any]]:
    queries = {
        "namespace": "label_values(qwen_kv_blocks, namespace)",
        "deployment": 'label_values(qwen_kv_blocks{namespace=~"$namespace"}, deployment)',
    }
    return [
        {
            "name": name,
            "type": "query",
            "datasource": _SOURCE,
            "query": {"query": query, "refId": name},
            "definition": query,
            "refresh": 2,
            "includeAll": True,
            "multi": True,
            "allValue": ".*",
            "current": {"text": "All", "value": "$__all"},
        }
        for name, query in queries.items()
    ]


def main() -> int:
    """Rewrite the dashboard."""
    TARGET.write_text(render(), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
