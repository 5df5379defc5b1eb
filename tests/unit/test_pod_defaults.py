"""What those who install the operator give to every engine's pod."""

from __future__ import annotations

from typing import Any

import pytest

from qwen_operator.errors import SettingsError
from qwen_operator.pod_defaults import PodDefaults, parse_pod_defaults
from qwen_operator.reconcile import Observed, reconcile
from qwen_operator.settings import parse_settings
from tests.unit.operator_states import IMAGE, NOW, Json, resource

GIVEN = PodDefaults({"HTTPS_PROXY": "http://proxy:3128", "HF_HOME": "/elsewhere"}, ("registry",))


def deployment(about: Json, defaults: PodDefaults = GIVEN, live: Json | None = None) -> Json:
    observed = Observed(deployment=live)
    outcome = reconcile(about, observed, engine_image=IMAGE, pod_defaults=defaults, now=NOW)
    assert outcome is not None
    found: Json = next(m for m in outcome.apply if m["kind"] == "Deployment")
    return found


def pod(found: Json) -> dict[str, Any]:
    spec: dict[str, Any] = found["spec"]["template"]["spec"]
    return spec


def env(found: Json) -> dict[str, str]:
    return {item["name"]: item["value"] for item in pod(found)["containers"][0]["env"]}


def test_every_pod_has_the_environment_and_the_secrets() -> None:
    found = deployment(resource())
    assert env(found)["HTTPS_PROXY"] == "http://proxy:3128"
    assert env(found)["HF_HOME"] == "/elsewhere"  # ours where nothing is said
    assert pod(found)["imagePullSecrets"] == [{"name": "registry"}]


def test_the_spec_wins() -> None:
    spec = resource()["spec"]
    own = {"env": [{"name": "HTTPS_PROXY", "value": "http://other:1"}]}
    template = {"imagePullSecrets": [{"name": "own"}]}
    engine = {**spec["engine"], **own}
    found = deployment(resource({**spec, "engine": engine, "template": template}))
    assert env(found)["HTTPS_PROXY"] == "http://other:1"
    assert pod(found)["imagePullSecrets"] == [{"name": "own"}]


def test_without_defaults_the_pod_and_its_meaning_are_as_they_always_were() -> None:
    plain = deployment(resource(), PodDefaults())
    assert "imagePullSecrets" not in pod(plain)
    notes = plain["metadata"]["annotations"]
    assert "qwenoperator.io/meaning" in notes
    assert (
        notes["qwenoperator.io/meaning"]
        != (deployment(resource())["metadata"]["annotations"]["qwenoperator.io/meaning"])
    )
    assert PodDefaults().meaning() == {}


def test_settings_read_them_from_the_chart() -> None:
    text = '{"env": {"A": "b"}, "imagePullSecrets": ["x"]}'
    settings = parse_settings([], {"QWEN_ENGINE_DEFAULTS": text, "QWEN_INSTALL_CRD": "true"})
    assert settings.pod_defaults == PodDefaults({"A": "b"}, ("x",))
    assert settings.installs_crd
    assert parse_settings([], {}).pod_defaults == PodDefaults()
    assert not parse_settings([], {}).installs_crd


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "--x='{': give"),
        ("[]", "give"),
        ('{"environment": {}}', "give"),
        ('{"env": {"A": 1}}', "env must be names with texts"),
        ('{"env": ["A"]}', "env must be"),
        ('{"imagePullSecrets": [{"name": "x"}]}', "names of Secrets"),
        ('{"imagePullSecrets": "x"}', "names of Secrets"),
    ],
)
def test_what_cannot_be_is_refused(text: str, words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        parse_pod_defaults("--x", text)


def test_a_switch_is_true_or_false() -> None:
    with pytest.raises(SettingsError, match="QWEN_INSTALL_CRD='perhaps': use true or false"):
        parse_settings([], {"QWEN_INSTALL_CRD": "perhaps"})
