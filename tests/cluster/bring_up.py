"""Starts the control plane's programs in order and watches that none of them ends.

Called by the supervisor (on the loopback) and by the node's first process (in its namespaces).
"""

import os
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.cluster.api_client import ApiClient
from tests.cluster.audit import write_policy
from tests.cluster.control_plane import (
    ControlPlaneSettings,
    apiserver_command,
    controller_manager_command,
    etcd_command,
    scheduler_command,
)
from tests.cluster.credentials import write_credentials, write_kubeconfig
from tests.cluster.paths import RunDirectory
from tests.cluster.polling import until
from tests.cluster.processes import ClusterError, spawn, stop, tail

READY_SECONDS = 60.0  # two busy cores need 5; a cold page cache has been seen to take 20


class Components:
    """The programs of one cluster that this process has started."""

    def __init__(self, run: RunDirectory) -> None:
        self.run = run
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, argv: Sequence[str]) -> None:
        """Start a program that logs to `logs/<name>.log`."""
        self._processes[name] = spawn(argv, log=self.log(name), env=os.environ)

    def log(self, name: str) -> Path:
        """Return where a program logs."""
        return self.run.logs / f"{name}.log"

    def check(self) -> None:
        """Raise ClusterError if a program has ended, with the last lines of its log."""
        for name, process in self._processes.items():
            if process.poll() is not None:
                raise ClusterError(
                    f"{name} ended (exit {process.returncode}); last lines of {self.log(name)}:\n"
                    f"{tail(self.log(name))}"
                )

    def reap_others(self) -> None:
        """Collect ended children that are none of the programs (for who is init)."""
        ours = {process.pid for process in self._processes.values()}
        ended = os.WEXITED | os.WNOHANG | os.WNOWAIT
        while (child := os.waitid(os.P_ALL, 0, ended)) and child.si_pid not in ours:
            os.waitpid(child.si_pid, 0)

    def stop(self) -> None:
        """End all programs, last started first."""
        stop(list(self._processes.values()), grace_seconds=5.0)
        self._processes.clear()


def start_control_plane(settings: ControlPlaneSettings, components: Components) -> None:
    """Return when the API server is ready and controllers work. Raises ClusterError."""
    token = write_credentials(settings.run)
    write_policy(settings.run)
    components.start("etcd", etcd_command(settings))
    components.start("kube-apiserver", apiserver_command(settings))
    authority = settings.run.certificates / "apiserver.crt"
    client = ApiClient(settings.server, token=token, authority=authority)
    await_fact(components, "the API server ready", lambda: client.get("/readyz"))
    write_kubeconfig(
        settings.run.kubeconfig, server=settings.server, token=token, authority=authority
    )
    say("API server ready")
    components.start("kube-controller-manager", controller_manager_command(settings))
    components.start("kube-scheduler", scheduler_command(settings))
    # its existence is the controller manager's work, and no pod can be made without it
    account = "/api/v1/namespaces/default/serviceaccounts/default"
    await_fact(components, "the default service account", lambda: client.get(account))
    say("controllers ready")


def await_fact(components: Components, what: str, fact: Callable[[], object]) -> None:
    """Poll until `fact` holds. Raises ClusterError when it does not in time, or a program ends."""

    def checked() -> object:
        components.check()
        return fact()

    try:
        until(checked, what=what, within_seconds=READY_SECONDS, every_seconds=0.05)
    except TimeoutError as error:
        raise ClusterError(f"{error}; the logs are in {components.run.logs}") from error


_STARTED = "QWEN_CLUSTER_STARTED"
os.environ.setdefault(_STARTED, str(time.monotonic()))  # children count from the same moment


def say(line: str) -> None:
    """Report a step to whoever follows the start, with the seconds since the supervisor began."""
    elapsed = time.monotonic() - float(os.environ[_STARTED])
    print(f"[{elapsed:5.1f} s] {line}", flush=True)
