"""A real Prometheus, out of a Debian package, on loopback: scrapes, applies rules, answers."""

from __future__ import annotations

import json
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.cluster.polling import until
from tests.cluster.processes import spawn, stop
from tests.control_plane.operator_process import free_port


class Prometheus:
    """Started by the constructor; scrapes each target every second with its labels."""

    def __init__(
        self,
        program: Path,
        folder: Path,
        targets: Mapping[str, Mapping[str, str]],
        rules: Path | None = None,
    ) -> None:
        self._url = f"127.0.0.1:{free_port()}"
        config = folder / "prometheus.yml"
        config.write_text(json.dumps(_config(targets, rules)))
        self.log = folder / "prometheus.log"
        self._process: subprocess.Popen[bytes] = spawn(
            [
                str(program),
                f"--config.file={config}",
                f"--storage.tsdb.path={folder}/data",
                f"--web.listen-address={self._url}",
            ],
            log=self.log,
            env={},
        )
        until(self._is_ready, what="Prometheus ready", within_seconds=60)

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Return the series of an instant query. Raises AssertionError where it is refused."""
        answer = self._get("query", query=expression)
        assert answer["status"] == "success", (expression, answer)
        found: list[dict[str, Any]] = answer["data"]["result"]
        return found

    def labels_of(self, metric: str) -> set[str]:
        """Return the names of all labels that any series of a metric has."""
        answer = self._get("series", **{"match[]": metric})
        return {label for series in answer["data"] for label in series}

    def close(self) -> None:
        """End it."""
        stop([self._process], grace_seconds=10)

    def _is_ready(self) -> bool:
        assert self._process.poll() is None, self.log.read_text()
        try:
            with urllib.request.urlopen(f"http://{self._url}/-/ready", timeout=5) as got:
                return bool(got.status == 200)
        except (urllib.error.URLError, ConnectionError):
            return False

    def _get(self, what: str, **parameters: str) -> dict[str, Any]:
        query = urllib.parse.urlencode(parameters)
        try:
            with urllib.request.urlopen(
                f"http://{self._url}/api/v1/{what}?{query}", timeout=30
            ) as got:
                found: dict[str, Any] = json.load(got)
        except urllib.error.HTTPError as error:
            found = json.load(error)
        return found


def _config(targets: Mapping[str, Mapping[str, str]], rules: Path | None) -> dict[str, Any]:
    jobs = [
        {
            "job_name": f"job-{number}",
            "honor_labels": True,
            "static_configs": [{"targets": [address], "labels": dict(labels)}],
        }
        for number, (address, labels) in enumerate(targets.items())
    ]
    return {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "scrape_configs": jobs,
        "rule_files": [str(rules)] if rules else [],
    }
