"""The processes of a pod, as this machine sees them: to kill them as a fault would."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any


def processes_of(pod: Mapping[str, Any], command: str) -> Iterator[int]:
    """Yield the pids of a pod's processes whose command line names `command`."""
    uid = pod["metadata"]["uid"]
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            belongs = uid in (entry / "cgroup").read_text()
            if belongs and command in (entry / "cmdline").read_text():
                yield int(entry.name)
        except OSError:
            continue  # it ended meanwhile
