"""Monitors, rules and dashboard of the chart: off until asked for, and right by their own tools."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.chart.test_chart import one, render
from tests.control_plane.queries import RULES, of_the_rules
from tests.setup import chart_dashboard
from tests.setup.debian import find_program

ON = ("--set", "monitoring.monitors=true,monitoring.rules=true,monitoring.dashboard=true")
KINDS = {"ServiceMonitor", "PodMonitor", "PrometheusRule", "ConfigMap"}
CASES = Path(__file__).with_name("rules_test.yaml")


def promtool(*args: str) -> str:
    program = find_program("prometheus", "promtool")
    if program is None:
        end = pytest.fail if os.environ.get("CI") else pytest.skip
        end("promtool missing: `make test` gets it from Debian's package prometheus")
    result = subprocess.run([program, *args], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def test_nothing_of_it_is_there_until_asked_for() -> None:
    assert KINDS.isdisjoint({document["kind"] for document in render()})
    assert {document["kind"] for document in render(*ON)} >= KINDS


def test_monitors_find_the_ports_that_serve_metrics_and_name_the_deployment() -> None:
    documents = render(*ON, "--set", "monitoring.labels.release=prometheus")
    [endpoint] = one(documents, "ServiceMonitor")["spec"]["endpoints"]
    services = [d for d in documents if d["kind"] == "Service"]
    ports = [p for s in services for p in s["spec"]["ports"] if p["name"] == endpoint["port"]]
    assert [p["targetPort"] for p in ports] == ["figures"]  # of one Service only: no scrape twice
    assert endpoint["honorLabels"] is True
    engines = one(documents, "PodMonitor")
    assert engines["metadata"]["labels"]["release"] == "prometheus"
    [scraped] = engines["spec"]["podMetricsEndpoints"]
    labels = {rule["targetLabel"]: rule["sourceLabels"][0] for rule in scraped["relabelings"]}
    assert labels["deployment"].endswith("_label_qwenoperator_io_deployment")
    assert engines["spec"]["namespaceSelector"] == {"any": True}
    named = one(render(*ON, "--set", "watchNamespaces={a,b}"), "PodMonitor")
    assert named["spec"]["namespaceSelector"] == {"matchNames": ["a", "b"]}


def test_the_rules_are_the_file_and_promtool_finds_no_fault_in_it() -> None:
    shipped = yaml.safe_load(RULES.read_text("utf-8"))
    assert one(render(*ON), "PrometheusRule")["spec"] == shipped
    promtool("check", "rules", str(RULES))


def test_every_alert_rings_when_it_must_and_not_before(tmp_path: Path) -> None:
    cases = CASES.read_text("utf-8")
    tried = {
        case["alertname"] for t in yaml.safe_load(cases)["tests"] for case in t["alert_rule_test"]
    }
    assert tried == set(of_the_rules("alert"))
    filled = tmp_path / "cases.yaml"
    filled.write_text(cases.replace("[RULES]", f"[{RULES}]"))
    promtool("test", "rules", str(filled))


def test_the_dashboard_is_as_generated_and_grafana_can_show_it() -> None:
    assert chart_dashboard.TARGET.read_text("utf-8") == chart_dashboard.render(), "run `make chart`"
    config = one(render(*ON), "ConfigMap")
    assert config["metadata"]["labels"]["grafana_dashboard"] == "1"
    dashboard: dict[str, Any] = json.loads(config["data"]["qwen.json"])
    assert dashboard == chart_dashboard.build_dashboard()
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(ids) == len(set(ids))
    cells = [
        (x, y)
        for place in (panel["gridPos"] for panel in dashboard["panels"])
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(cells) == len(set(cells)), "panels lie over each other"
    assert max(x for x, _ in cells) < 24
