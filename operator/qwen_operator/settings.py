"""The operator's own settings, from flags and environment.

Read once by `__main__` and passed down; flags win over the environment, which the chart sets.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from qwen_operator import __version__
from qwen_operator.errors import SettingsError
from qwen_operator.metrics_api.registration import Place
from qwen_operator.pod_defaults import NO_DEFAULTS, PodDefaults, parse_pod_defaults
from qwen_operator.runtime import DEFAULT_VLLM_IMAGE
from qwen_operator.spec_guards import is_peer

DEFAULT_ENGINE_IMAGE = f"qwen-engine:{__version__}"
_WORD = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SERVICE = re.compile(f"(?P<namespace>{_WORD})/(?P<name>{_WORD})(:(?P<port>[0-9]+))?")
_LOG_LEVELS = ("debug", "info", "warning", "error")


@dataclass(frozen=True, slots=True)
class Settings:
    """What the operator was told by those who installed it.

    Attributes:
        namespaces: where QwenDeployments are served; empty means everywhere.
        resync_seconds: how often everything is looked at again, whatever was or was not heard.
        scrape_seconds: how often engines are asked for their free blocks.
        autoscaling_seconds: how often those that are scaled are asked, and decided on.
        metrics_place: how the API server reaches the metrics API; None to serve none.
        metrics_port: where it listens.
        pod_defaults: what every engine's pod gets besides its plan.
        installs_crd: whether the CRD is made this version's at start.
        figures_url: how KEDA reaches the figures; None to serve none.
        figures_port: where they are served.
        engine_peers: whom engines with spec.networkPolicy admit besides, this operator above all.
        has_activator: an activator was installed, so that nothing is lost at zero replicas.
    """

    engine_image: str
    namespaces: tuple[str, ...]
    health_port: int
    log_level: str
    resync_seconds: float
    scrape_seconds: float
    vllm_image: str = DEFAULT_VLLM_IMAGE
    autoscaling_seconds: float = 5.0
    metrics_place: Place | None = None
    metrics_port: int = 6443
    pod_defaults: PodDefaults = NO_DEFAULTS
    installs_crd: bool = False
    figures_url: str | None = None
    figures_port: int = 8081
    has_activator: bool = False
    engine_peers: tuple[Mapping[str, Any], ...] = ()


def parse_settings(argv: Sequence[str], env: Mapping[str, str]) -> Settings:
    """Read flags and environment.

    Raises:
        SettingsError: a value cannot be; the message names the flag and the variable.
    """
    args = _parser(env).parse_args(argv)
    return Settings(
        engine_image=_word("--engine-image / QWEN_ENGINE_IMAGE", args.engine_image),
        vllm_image=_word("--vllm-image / QWEN_VLLM_IMAGE", args.vllm_image),
        namespaces=tuple(sorted({n for text in args.namespace for n in text.split(",") if n})),
        health_port=int(_positive("--health-port / QWEN_HEALTH_PORT", args.health_port)),
        log_level=_one_of("--log-level / QWEN_LOG_LEVEL", args.log_level),
        resync_seconds=_positive("--resync-seconds / QWEN_RESYNC_SECONDS", args.resync_seconds),
        scrape_seconds=_positive("--scrape-seconds / QWEN_SCRAPE_SECONDS", args.scrape_seconds),
        autoscaling_seconds=_positive(
            "--autoscaling-seconds / QWEN_AUTOSCALING_SECONDS", args.autoscaling_seconds
        ),
        metrics_place=_place(args.metrics_service, args.metrics_owner),
        metrics_port=_port("--metrics-port / QWEN_METRICS_PORT", args.metrics_port),
        pod_defaults=parse_pod_defaults(
            "--engine-defaults / QWEN_ENGINE_DEFAULTS", args.engine_defaults
        ),
        installs_crd=_switch("--install-crd / QWEN_INSTALL_CRD", args.install_crd),
        figures_url=_url(args.figures_service),
        figures_port=_port("--figures-port / QWEN_FIGURES_PORT", args.figures_port),
        has_activator=args.activator,
        engine_peers=_peers("--engine-peers / QWEN_ENGINE_PEERS", args.engine_peers),
    )


def _parser(env: Mapping[str, str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="qwen-operator",
        description="Plan, serve and scale the QwenDeployments of a Kubernetes cluster.",
        epilog="Every flag has an environment variable, named in brackets.",
    )
    parser.add_argument("--version", action="version", version=f"qwen-operator {__version__}")

    def add(flag: str, variable: str, default: str, text: str) -> None:
        parser.add_argument(
            flag, default=env.get(variable) or default, help=f"{text} [{variable}, now %(default)s]"
        )

    add("--engine-image", "QWEN_ENGINE_IMAGE", DEFAULT_ENGINE_IMAGE, "image of the engine's pods")
    add("--vllm-image", "QWEN_VLLM_IMAGE", DEFAULT_VLLM_IMAGE, "image of pods with runtime VLLM")
    add(
        "--engine-defaults",
        "QWEN_ENGINE_DEFAULTS",
        "",
        'JSON {"env": {NAME: VALUE}, "imagePullSecrets": [NAME]} for every engine\'s pod',
    )
    add(
        "--engine-peers",
        "QWEN_ENGINE_PEERS",
        "[]",
        "JSON list of peers that engines with spec.networkPolicy admit besides, as in its `from`",
    )
    add("--install-crd", "QWEN_INSTALL_CRD", "false", "true: apply the CRD at start")
    add("--health-port", "QWEN_HEALTH_PORT", "8080", "port of /healthz")
    add("--log-level", "QWEN_LOG_LEVEL", "info", " | ".join(_LOG_LEVELS))
    add("--resync-seconds", "QWEN_RESYNC_SECONDS", "120", "seconds between looks at everything")
    add("--scrape-seconds", "QWEN_SCRAPE_SECONDS", "15", "seconds between reads of free blocks")
    add(
        "--autoscaling-seconds",
        "QWEN_AUTOSCALING_SECONDS",
        "5",
        "seconds between decisions on how many replicas are needed",
    )
    add(
        "--metrics-service",
        "QWEN_METRICS_SERVICE",
        "",
        "NAMESPACE/NAME[:PORT] of the Service to this operator's metrics API; empty: serve none",
    )
    add("--metrics-port", "QWEN_METRICS_PORT", "6443", "port that the metrics API listens on")
    add(
        "--metrics-owner",
        "QWEN_METRICS_OWNER",
        "",
        "ClusterRole whose deletion deletes the APIService; empty: none",
    )
    add(
        "--figures-service",
        "QWEN_FIGURES_SERVICE",
        "",
        "NAMESPACE/NAME[:PORT] of the Service where KEDA asks for figures; empty: serve none",
    )
    add("--figures-port", "QWEN_FIGURES_PORT", "8081", "port that the figures are served on")
    parser.add_argument(
        "--activator",
        action="store_true",
        default=env.get("QWEN_ACTIVATOR") == "true",
        help="an activator is installed: spec.autoscaling.minReplicas may be 0 [QWEN_ACTIVATOR]",
    )
    parser.add_argument(
        "--namespace", action="append", default=[env.get("QWEN_NAMESPACES", "")],
        help="serve only this namespace; may be repeated [QWEN_NAMESPACES, comma-separated]",
    )  # fmt: skip
    return parser


def _positive(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e9:
        raise SettingsError(f"{name}={text!r}: give a number above 0")
    return value


def _port(name: str, text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) < 2**16:
        raise SettingsError(f"{name}={text!r}: give a port from 1 to 65535")
    return int(text)


def _place(service: str, owner: str) -> Place | None:
    if not service:
        return None
    namespace, name, port = _service("--metrics-service / QWEN_METRICS_SERVICE", service, "443")
    return Place(namespace, name, port, owner)


def _url(service: str) -> str | None:
    if not service:
        return None
    namespace, name, port = _service("--figures-service / QWEN_FIGURES_SERVICE", service, "80")
    return f"http://{name}.{namespace}.svc:{port}"


def _service(name: str, text: str, default_port: str) -> tuple[str, str, int]:
    found = _SERVICE.fullmatch(text)
    if found is None:
        raise SettingsError(f"{name}={text!r}: give NAMESPACE/NAME or NAMESPACE/NAME:PORT")
    return found["namespace"], found["name"], _port(name, found["port"] or default_port)


def _one_of(name: str, text: str) -> str:
    if text.lower() not in _LOG_LEVELS:
        raise SettingsError(f"{name}={text!r}: use one of {', '.join(_LOG_LEVELS)}")
    return text.lower()


def _peers(name: str, text: str) -> tuple[Mapping[str, Any], ...]:
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, list) or not all(is_peer(peer) for peer in found):
        raise SettingsError(f"{name}={text!r}: give a JSON list, as a NetworkPolicy's `from`")
    return tuple(found)


def _switch(name: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise SettingsError(f"{name}={text!r}: use true or false")
    return text.lower() == "true"


def _word(name: str, text: str) -> str:
    if not text or text.split() != [text]:
        raise SettingsError(
            f"{name}={text!r}: give an image such as registry.example/qwen-engine:1.0"
        )
    return text
