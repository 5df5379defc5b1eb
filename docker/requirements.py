"""Prints what our distributions need of others, from their pyproject files, one to a line.

Run while an image is built: requirements.py PYPROJECT[:EXTRA]... So that what is installed of
others is a layer of its own, which a change of our code leaves as it is.
"""

import re
import sys
import tomllib
from collections.abc import Iterator

_OURS = re.compile(r"qwen-(engine|operator)\b")


def requirements(paths: list[str]) -> Iterator[str]:
    """Yield the requirements of pyproject files; `path:extra` adds those of an extra."""
    for word in paths:
        path, _, extra = word.partition(":")
        with open(path, "rb") as file:
            project = tomllib.load(file)["project"]
        yield from project["dependencies"]
        if extra:
            yield from project["optional-dependencies"][extra]


if __name__ == "__main__":
    found = {line for line in requirements(sys.argv[1:]) if not _OURS.match(line)}
    print("\n".join(sorted(found)))
