"""What every engine's pod gets besides its plan: environment and image pull secrets. Pure.

Given by those who installed the operator (chart: proxy, engineDefaults); read by `settings`, used
by `pod_template`. A change is another meaning of every spec, so it replaces pods as another image
does.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from qwen_operator.errors import SettingsError

_KEYS = {"env", "imagePullSecrets"}


@dataclass(frozen=True, slots=True)
class PodDefaults:
    """Environment by name, and the names of Secrets in the QwenDeployment's own namespace."""

    env: Mapping[str, str] = field(default_factory=dict)
    pull_secrets: tuple[str, ...] = ()

    def meaning(self) -> dict[str, Any]:
        """Return what decides how pods look; nothing where nothing is given."""
        found = {"env": dict(self.env), "pull_secrets": list(self.pull_secrets)}
        given = {key: value for key, value in found.items() if value}
        return {"defaults": given} if given else {}


NO_DEFAULTS = PodDefaults()


def parse_pod_defaults(name: str, text: str) -> PodDefaults:
    """Read `{"env": {NAME: VALUE}, "imagePullSecrets": [NAME]}`; empty text is none.

    Raises:
        SettingsError: it is something else; the message names the flag `name`.
    """
    try:
        found = json.loads(text or "{}")
    except ValueError:
        found = None
    if not isinstance(found, dict) or not set(found) <= _KEYS:
        raise SettingsError(f'{name}={text!r}: give {{"env": {{…}}, "imagePullSecrets": […]}}')
    env, secrets = found.get("env") or {}, found.get("imagePullSecrets") or []
    if not isinstance(env, dict) or not all(isinstance(value, str) for value in env.values()):
        raise SettingsError(f"{name}: env must be names with texts, not {env!r}")
    if not isinstance(secrets, list) or not all(isinstance(s, str) and s for s in secrets):
        raise SettingsError(f"{name}: imagePullSecrets must be names of Secrets, not {secrets!r}")
    return PodDefaults(env, tuple(secrets))
