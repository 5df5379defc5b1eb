#!/bin/sh
# Writes constraints.txt: the newest versions that fit the pyproject files, for Python 3.11-3.13.
# `make constraints` runs it; UPGRADE= keeps what is pinned already and adds only what is new.
set -eu
cd "$(dirname "$0")/../.."
printf -- '-e ./engine[serve]\n-e ./operator\n-r requirements-dev.txt\n' |
    uv pip compile - --quiet ${UPGRADE---upgrade} --output-file constraints.txt \
        --universal --python-version 3.11 --no-annotate --no-strip-markers \
        --no-emit-package qwen-engine --no-emit-package qwen-operator \
        --custom-compile-command 'make constraints   (tests/setup/constraints.sh: uv pip compile --universal)'
