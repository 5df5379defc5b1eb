"""`qwen-operator self-test`: what `helm test` runs. Prints what was checked and what failed.

Needs no rights: discovery is open to every service account, and the operator's /metrics tells the
rest.
"""

from __future__ import annotations

import os
import ssl
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from qwen_operator import names

_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_SECONDS = 10.0
Fetch = Callable[[str], str]
"""Return the body at a URL. Raises OSError."""


def main(env: Mapping[str, str] = os.environ) -> int:
    """Run every check that the chart's values call for."""
    failures = list(run_checks(env, fetch))
    for words in failures:
        print(f"FAILED: {words}")
    print("all is well" if not failures else f"{len(failures)} checks failed")
    return 1 if failures else 0


def run_checks(env: Mapping[str, str], get: Fetch) -> Iterator[str]:
    """Yield what fails.

    Args:
        env: QWEN_FIGURES_URL of the operator's /metrics, and QWEN_TEST_METRICS_API, which is true
            where the operator is to serve external.metrics.k8s.io; both as the chart sets them.
    """
    host, port = env.get("KUBERNETES_SERVICE_HOST", ""), env.get("KUBERNETES_SERVICE_PORT", "443")
    server = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    checks = [(f"{server}/apis/{names.API_VERSION}", f'"{names.PLURAL}"', "the CRD is served")]
    if env.get("QWEN_TEST_METRICS_API") == "true":
        url = f"{server}/apis/external.metrics.k8s.io/v1beta1"
        checks.append((url, f'"{names.REPLICAS_METRIC}"', "HPAs can read the operator's metrics"))
    for url, wanted, what in checks:
        try:
            is_there = wanted in get(url)
        except OSError as error:
            yield f"{what}: {url}: {error}"
            continue
        if not is_there:
            yield f"{what}: {url} does not list {wanted}"
        print(f"checked: {what}")
    if figures := env.get("QWEN_FIGURES_URL"):
        yield from _check_series(figures, get)


def fetch(url: str) -> str:
    """Ask with the pod's own service account, and trust only the cluster's authority."""
    request = urllib.request.Request(url)
    context = None
    if url.startswith("https:"):
        request.add_header("Authorization", f"Bearer {(_ACCOUNT / 'token').read_text()}")
        context = ssl.create_default_context(cafile=str(_ACCOUNT / "ca.crt"))
    with urllib.request.urlopen(request, timeout=_SECONDS, context=context) as answer:
        text: str = answer.read().decode()
        return text


def _check_series(url: str, get: Fetch) -> Iterator[str]:
    """Yield what the operator's own series tell of broken contracts."""
    try:
        families = {f.name: f.samples for f in text_string_to_metric_families(get(url))}
    except (OSError, ValueError) as error:
        yield f"the operator tells its series: {url}: {error}"
        return
    print("checked: the operator tells its series")
    if "qwen_operator_info" not in families:
        yield f"{url} has no series qwen_operator_info"
    broken = [
        sample.labels
        for sample in families.get("qwen_operator_condition", ())
        if sample.labels["condition"] == "MetricsContract" and sample.labels["status"] == "False"
    ]
    for labels in broken:
        name = f"{labels['namespace']}/{labels['deployment']}"
        yield f"{name}: MetricsContract is False ({labels['reason']}): kubectl describe qwen"
    print("checked: the condition MetricsContract of every QwenDeployment that is scaled")


if __name__ == "__main__":
    sys.exit(main())
