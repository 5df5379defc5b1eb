#!/bin/sh
# Finds a Python that will do (on Debian and Ubuntu, root gets one) and hands over to it.
# usage: tests/setup/install.sh [lint|demo|test|all]
set -eu
cd "$(dirname "$0")/../.."

suits() {
    "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null
}

find_python() {
    for name in "${PYTHON:-python3}" python3.13 python3.12 python3.11; do
        if suits "$name"; then
            command -v "$name"
            return
        fi
    done
    return 1
}

get_python() {
    [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null || return 1
    echo "getting Python from Debian packages" >&2
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -q >&2
    for package in python3.13 python3.12 python3.11 python3; do
        apt-get install -y -q --no-install-recommends "$package" "$package-venv" >&2 || continue
        find_python && return
    done
    return 1
}

if ! python=$(find_python) && ! python=$(get_python); then
    echo "error: no Python 3.11, 3.12 or 3.13 found. Get one (Debian 12 or newer, Ubuntu 24.04 or" >&2
    echo "newer: apt-get install python3 python3-venv), or name one: make PYTHON=/path/to/python3" >&2
    exit 1
fi
exec "$python" -m tests.setup "$@"
