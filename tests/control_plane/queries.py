"""All queries that are shipped: of the dashboard, the rules, the docs for prometheus-adapter."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import yaml

from tests.cluster.paths import REPOSITORY

MONITORING = REPOSITORY / "charts" / "qwen-operator" / "monitoring"
RULES = MONITORING / "rules.yaml"
_VARIABLES = {
    "$namespace": ".*", "$deployment": ".*", "$__rate_interval": "10s", "$__range": "5m",
}  # fmt: skip
_METRIC = re.compile(r"\b(?:qwen|vllm)[:_][a-z0-9_:]+")
_MATCHED = re.compile(r"([a-z_]+)\s*(?:=~|!~|!=|=)\s*\"")
_LISTED = re.compile(r"\b(?:by|ignoring|on)\s*\(([^)]*)\)")
_COMPARED = re.compile(r"\s(?:<|>|==)\s*[0-9.]+\s*$")


def of_the_dashboard() -> dict[str, str]:
    """Return queries by panel and letter, with Grafana's variables filled in."""
    found: dict[str, Any] = json.loads((MONITORING / "dashboard.json").read_text("utf-8"))
    queries = {}
    for panel in found["panels"]:
        for target in panel.get("targets", ()):
            query = target["expr"]
            for name, value in _VARIABLES.items():
                query = query.replace(name, value)
            assert "$" not in query, query
            queries[f"{panel['title']} {target['refId']}"] = query
    return queries


def of_the_rules(kind: str) -> dict[str, str]:
    """Return the expressions of recording rules (`record`) or alerts (`alert`) by name."""
    groups = yaml.safe_load(RULES.read_text("utf-8"))["groups"]
    return {r[kind]: r["expr"] for group in groups for r in group["rules"] if kind in r}


def of_the_adapter(namespace: str, deployment: str) -> dict[str, str]:
    """Return prometheus-adapter's queries in docs/autoscaling.md, as it fills them in."""
    text = Path(REPOSITORY, "docs", "autoscaling.md").read_text("utf-8")
    [block] = re.findall(r"```yaml\n(externalRules:\n.*?)```", text, re.DOTALL)
    matchers = f'namespace="{namespace}",deployment="{deployment}"'
    return {
        rule["name"]["as"]: rule["metricsQuery"]
        .replace("<<.LabelMatchers>>", matchers)
        .replace("<<.GroupBy>>", "namespace")
        for rule in yaml.safe_load(block)["externalRules"]
    }


def without_its_bound(alert: str) -> str:
    """Return what an alert compares: a cluster that is well has that, and no alert."""
    return _COMPARED.sub("", alert)


def metrics_in(query: str) -> set[str]:
    """Return the names of metrics in a query."""
    return set(_METRIC.findall(re.sub(r'"[^"]*"', '""', query)))


def labels_in(query: str) -> set[str]:
    """Return the names of labels that a query reads."""
    listed = {name.strip() for group in _LISTED.findall(query) for name in group.split(",")}
    return {*_MATCHED.findall(query), *listed} - {""}
