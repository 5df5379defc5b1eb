"""QwenDeploymentSpec: parsing, defaults, and what a spec means."""

from __future__ import annotations

import re
from typing import Any

import pytest

from qwen_operator.errors import InvalidSpecError, SettingsError
from qwen_operator.names import digest, label_value
from qwen_operator.settings import DEFAULT_ENGINE_IMAGE, parse_settings
from qwen_operator.spec import parse_source, parse_spec

MODEL = {"model": {"id": "Qwen/Qwen3-0.6B"}}


def test_a_model_id_alone_is_a_whole_spec() -> None:
    spec = parse_spec(MODEL)
    assert (spec.model.source.scheme, spec.model.source.place) == ("hf", "Qwen/Qwen3-0.6B")
    assert (spec.gpu.count, spec.gpu.resource_name) == (1, "nvidia.com/gpu")
    assert (spec.replicas, spec.service.type, spec.service.port) == (1, "ClusterIP", 8000)


@pytest.mark.parametrize(
    ("uri", "scheme", "place", "folder"),
    [
        (None, "hf", "a/b", ""),
        ("hf://Qwen/Qwen3-8B", "hf", "Qwen/Qwen3-8B", ""),
        ("pvc://models/Qwen3/8B/", "pvc", "models", "Qwen3/8B"),
        ("pvc://models", "pvc", "models", ""),
        ("file:///srv/models/x", "file", "/srv/models/x", ""),
    ],
)
def test_a_uri_names_a_scheme_a_place_and_a_folder(
    uri: str | None, scheme: str, place: str, folder: str
) -> None:
    source = parse_source("a/b", uri)
    assert (source.scheme, source.place, source.folder) == (scheme, place, folder)


@pytest.mark.parametrize(
    "uri", ["s3://x/y", "pvc://", "pvc:///x", "file://host/x", "file:///", "pvc://a/../b", "hf://"]
)
def test_an_address_that_cannot_be_is_refused_by_its_field(uri: str) -> None:
    with pytest.raises(InvalidSpecError, match=r"spec\.model\.uri.*") as caught:
        parse_source("a/b", uri)
    assert uri in str(caught.value)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"gpu": {"count": "many"}}, "spec.gpu.count"),
        ({"gpu": {"count": True}}, "spec.gpu.count"),
        ({"gpu": {"count": 2}}, "spec.gpu.count"),
        ({"gpu": {"memoryMiB": 0}}, "spec.gpu.memoryMiB"),
        ({"replicas": -1}, "spec.replicas"),
        ({"context": {"maxModelLen": 1.5}}, "spec.context.maxModelLen"),
        ({"engine": []}, "spec.engine"),
        ({"model": {}}, "spec.model.id"),
    ],
)
def test_a_wrong_value_is_refused_by_its_field_never_read_as_zero(
    change: dict[str, Any], field: str
) -> None:
    with pytest.raises(InvalidSpecError, match=re.escape(field)):
        parse_spec({**MODEL, **change})


def test_replicas_and_service_do_not_change_what_pods_mean() -> None:
    one = parse_spec({**MODEL, "replicas": 1})
    other = parse_spec({**MODEL, "replicas": 7, "service": {"type": "NodePort", "port": 80}})
    assert digest(one.meaning()) == digest(other.meaning())


def test_writing_out_a_default_does_not_change_the_meaning() -> None:
    explicit = {**MODEL, "gpu": {"count": 1, "resourceName": "nvidia.com/gpu"}, "engine": {}}
    assert digest(parse_spec(MODEL).meaning()) == digest(parse_spec(explicit).meaning())


@pytest.mark.parametrize(
    "change",
    [
        {"model": {"id": "Qwen/Qwen3-8B"}},
        {"engine": {"extraArgs": ["--seed=1"]}},
        {"engine": {"env": [{"name": "A", "value": "b"}]}},
        {"context": {"maxModelLen": 100}},
        {"template": {"nodeSelector": {"a": "b"}}},
    ],
)
def test_what_pods_depend_on_changes_the_meaning(change: dict[str, Any]) -> None:
    assert digest(parse_spec({**MODEL, **change}).meaning()) != digest(parse_spec(MODEL).meaning())


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("Qwen/Qwen3-0.6B", "Qwen-Qwen3-0.6B"),
        ("/-._a_.-/", "a"),
        ("a" * 62 + "-b", "a" * 62),  # a cut may end on a dash: trim after cutting
        ("", ""),
        ("模型", ""),
    ],
)
def test_label_values_are_what_the_api_accepts(text: str, value: str) -> None:
    assert label_value(text) == value
    assert re.fullmatch(r"([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?", label_value(text))


def test_flags_win_over_the_environment_and_both_over_defaults() -> None:
    env = {"QWEN_ENGINE_IMAGE": "from-env:1", "QWEN_NAMESPACES": "a,b", "QWEN_SCRAPE_SECONDS": "3"}
    settings = parse_settings(["--engine-image", "from-flag:2", "--namespace", "c"], env)
    assert settings.engine_image == "from-flag:2"
    assert settings.namespaces == ("a", "b", "c")
    assert settings.scrape_seconds == 3
    assert parse_settings([], {"QWEN_ENGINE_IMAGE": ""}).engine_image == DEFAULT_ENGINE_IMAGE


@pytest.mark.parametrize(
    ("env", "name"),
    [
        ({"QWEN_RESYNC_SECONDS": "often"}, "QWEN_RESYNC_SECONDS"),
        ({"QWEN_SCRAPE_SECONDS": "-1"}, "QWEN_SCRAPE_SECONDS"),
        ({"QWEN_LOG_LEVEL": "loud"}, "QWEN_LOG_LEVEL"),
        ({"QWEN_ENGINE_IMAGE": "two words"}, "QWEN_ENGINE_IMAGE"),
    ],
)
def test_a_setting_that_cannot_be_is_refused_by_its_name(env: dict[str, str], name: str) -> None:
    with pytest.raises(SettingsError, match=name):
        parse_settings([], env)
