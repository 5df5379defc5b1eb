"""The operator's flags for the metrics API, and for who reaches engines besides."""

from __future__ import annotations

import json

import pytest

from qwen_operator.errors import SettingsError
from qwen_operator.metrics_api.registration import Place
from qwen_operator.settings import parse_settings


def test_without_a_service_no_metrics_api_is_served() -> None:
    assert parse_settings([], {}).metrics_place is None


def test_the_service_may_have_a_port_and_an_owner() -> None:
    env = {"QWEN_METRICS_SERVICE": "system/qwen-metrics", "QWEN_METRICS_OWNER": "role"}
    assert parse_settings([], env).metrics_place == Place("system", "qwen-metrics", 443, "role")
    flags = ["--metrics-service", "system/m:8443", "--metrics-port", "9443"]
    settings = parse_settings(flags, {})
    assert settings.metrics_place == Place("system", "m", 8443)
    assert settings.metrics_port == 9443


def test_where_keda_asks_is_a_url_made_from_the_services_name() -> None:
    assert parse_settings([], {}).figures_url is None
    settings = parse_settings(["--figures-service", "system/figures"], {})
    assert (settings.figures_url, settings.figures_port) == ("http://figures.system.svc:80", 8081)
    env = {"QWEN_FIGURES_SERVICE": "a/b:8080", "QWEN_FIGURES_PORT": "9000"}
    settings = parse_settings([], env)
    assert (settings.figures_url, settings.figures_port) == ("http://b.a.svc:8080", 9000)
    assert [parse_settings([], {"QWEN_ACTIVATOR": v}).has_activator for v in ("true", "")] == [
        True,
        False,
    ]


def test_peers_are_read_as_a_list_of_a_network_policys() -> None:
    assert parse_settings([], {}).engine_peers == ()
    peer = {"namespaceSelector": {}, "podSelector": {"matchLabels": {"a": "b"}}}
    assert parse_settings([], {"QWEN_ENGINE_PEERS": json.dumps([peer])}).engine_peers == (peer,)


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ({"QWEN_METRICS_SERVICE": "qwen-metrics"}, "NAMESPACE/NAME"),
        ({"QWEN_METRICS_SERVICE": "a/b:99999"}, "port from 1 to 65535"),
        ({"QWEN_FIGURES_SERVICE": "http://a.b"}, "QWEN_FIGURES_SERVICE='http://a.b'"),
        ({"QWEN_FIGURES_PORT": "0"}, "QWEN_FIGURES_PORT='0'"),
        ({"QWEN_METRICS_PORT": "https"}, "QWEN_METRICS_PORT='https'"),
        ({"QWEN_ENGINE_PEERS": "everybody"}, "QWEN_ENGINE_PEERS='everybody'"),
        ({"QWEN_ENGINE_PEERS": "[{}]"}, "NetworkPolicy's `from`"),
        ({"QWEN_AUTOSCALING_SECONDS": "0"}, "QWEN_AUTOSCALING_SECONDS"),
    ],
)
def test_what_cannot_be_is_refused_by_flag_and_variable(env: dict[str, str], words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        parse_settings([], env)
