"""/metrics as Prometheus reads it: by promtool, and where that is missing by a parser."""

import os
import re
import subprocess

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.contract.server_process import ServerProcess
from tests.setup.debian import find_program

# vLLM's own names have a colon, which promtool keeps for recording rules.
_VLLMS_COLON = "metric names should not contain ':'"
_SUFFIXES = {"counter": "_total", "histogram": "_bucket"}


@pytest.fixture
def text(server: ServerProcess) -> str:
    """What is scraped after an answer, so that no series is empty."""
    server.post("/v1/completions", {"prompt": "Hi", "max_tokens": 3})
    scraped: str = server.get("/metrics")[1]
    return scraped


def test_promtool_finds_no_fault(text: str) -> None:
    promtool = find_program("prometheus", "promtool")
    if promtool is None:
        end = pytest.fail if os.environ.get("CI") else pytest.skip
        end("promtool missing: `make test` gets it from Debian's package prometheus")
    result = subprocess.run(
        [promtool, "check", "metrics"], input=text, capture_output=True, text=True, check=False
    )
    said = (result.stdout + result.stderr).splitlines()
    faults = [line for line in said if not (line.startswith("vllm:") and _VLLMS_COLON in line)]
    assert not faults
    assert result.returncode in (0, 3), "3: there is a remark, and all are vLLM's colon"


def test_every_series_has_help_and_type_and_a_name_that_fits_its_type(text: str) -> None:
    families = list(text_string_to_metric_families(text))
    names = [family.name for family in families]
    assert len(names) == len(set(names)) > 30
    for family in families:
        assert family.documentation, family.name
        assert family.type in ("counter", "gauge", "histogram", "info"), family.name
        suffix = _SUFFIXES.get(family.type)
        assert suffix is None or any(s.name.endswith(suffix) for s in family.samples), family.name
        assert family.type == "counter" or not family.name.endswith("_total")
        seen = [(sample.name, tuple(sorted(sample.labels.items()))) for sample in family.samples]
        assert len(seen) == len(set(seen)), f"{family.name} has a series twice"
    assert re.fullmatch(r"(?:[^\n]*\n)+", text), "it ends with a line break"


def test_buckets_grow_and_their_last_is_the_count(text: str) -> None:
    for family in text_string_to_metric_families(text):
        if family.type != "histogram":
            continue
        buckets = [s for s in family.samples if s.name.endswith("_bucket")]
        counts = [sample.value for sample in buckets]
        assert counts == sorted(counts), family.name
        assert buckets[-1].labels["le"] == "+Inf"
        assert counts[-1] == next(s.value for s in family.samples if s.name.endswith("_count"))
