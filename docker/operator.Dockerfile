# The operator: planner, kopf, API client; no torch. Build from the repository's root, with `make images`.
# Above the base: packages of others, then our code, so that a change of code re-sends little.
ARG BASE=python:3.12-slim

FROM ${BASE} AS requirements
COPY docker/requirements.py engine/pyproject.toml /src/engine/
COPY operator/pyproject.toml /src/operator/
RUN cd /src && python3 engine/requirements.py engine/pyproject.toml operator/pyproject.toml > /requirements.txt

# our own packages, compiled to bytecode
FROM ${BASE} AS code
RUN python3 -m venv /opt/tools && /opt/tools/bin/pip install --quiet --no-cache-dir "uv>=0.9,<1"
WORKDIR /src
COPY crds ./crds
COPY engine ./engine
COPY operator ./operator
RUN python3 -m venv --without-pip /opt/venv && /opt/tools/bin/uv pip install --python /opt/venv/bin/python3 --quiet --no-cache --no-deps --compile-bytecode \
    --target /opt/code ./engine ./operator

FROM ${BASE}
# elsewhere than in a throw-away cache: --cache-dir=… of a folder that the builder mounts
ARG CACHE=--no-cache
COPY --from=requirements /requirements.txt /opt/
COPY constraints.txt /opt/
# uv comes and goes within the layer
RUN python3 -m venv /opt/tools && /opt/tools/bin/pip install --quiet --no-cache-dir "uv>=0.9,<1" \
 && python3 -m venv --without-pip /opt/venv \
 && /opt/tools/bin/uv pip install --python /opt/venv/bin/python3 --quiet --compile-bytecode --link-mode copy $CACHE \
    --requirement /opt/requirements.txt --constraint /opt/constraints.txt \
 && for packages in /opt/venv/lib/python3.*/site-packages; do echo /opt/code > "$packages/code.pth"; done \
 && echo "nonroot:x:65532:65532::/tmp:/usr/sbin/nologin" >> /etc/passwd \
 && rm -rf /opt/tools /root/.cache
COPY --from=code /opt/code /opt/code
RUN --mount=type=bind,source=docker/sbom.py,target=/sbom.py \
    ["/opt/venv/bin/python3", "/sbom.py", "qwen-operator", "/opt/code/sbom.cdx.json"]
ARG VERSION=0.1.0
ARG REVISION=""
LABEL org.opencontainers.image.title="qwen-operator" \
      org.opencontainers.image.description="Kubernetes operator for Qwen3 and Qwen3-VL: plans, serves, scales" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
ENV PATH=/opt/code/bin:/opt/venv/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 HOME=/tmp
USER 65532:65532
EXPOSE 8080 6443
ENTRYPOINT ["/opt/code/bin/qwen-operator"]
