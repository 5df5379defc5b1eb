"""Where things lie: the clone, the cache outside it, and one run directory per cluster.

Called by everything in tests/cluster and tests/demo. Creates nothing by being imported.
"""

import os
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]


def cache_dir() -> Path:
    """Return the folder that holds downloads and builds, shared by all clones of a user."""
    if own := os.environ.get("QWEN_CACHE_DIR"):
        return Path(own).absolute()
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base).absolute() / "qwen-operator"


def default_run_directory() -> Path:
    """Return the run directory of the cluster that commands without --dir mean."""
    return cache_dir() / "clusters" / "default"


@dataclass(frozen=True, slots=True)
class RunDirectory:
    """The folder of one cluster: its settings, credentials, data and logs."""

    path: Path

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig; there once the API server answers."""
        return self.path / "kubeconfig"

    @property
    def lock(self) -> Path:
        """Held by the supervisor for as long as it lives."""
        return self.path / "lock"

    @property
    def state(self) -> Path:
        """JSON: what the supervisor last said of itself."""
        return self.path / "state.json"

    @property
    def node_ready(self) -> Path:
        """There once the node's first process has seen the node Ready."""
        return self.path / "node-ready"

    @property
    def progress(self) -> Path:
        """What the supervisor says while it starts, line by line."""
        return self.path / "supervisor.log"

    @property
    def logs(self) -> Path:
        """One log file per component."""
        return self.path / "logs"

    @property
    def audit_policy(self) -> Path:
        """What of the requests is recorded: audit.py."""
        return self.path / "audit-policy.json"

    @property
    def audit_log(self) -> Path:
        """One JSON object per request of a service account."""
        return self.logs / "audit.log"

    @property
    def certificates(self) -> Path:
        """The API server's own certificate and key."""
        return self.path / "certs"


def given_kubeconfig() -> Path | None:
    """Return the cluster that KUBECONFIG names, None if it names none or the default one here."""
    given = os.environ.get("KUBECONFIG")
    ours = RunDirectory(default_run_directory()).kubeconfig
    return Path(given) if given and Path(given) != ours else None
