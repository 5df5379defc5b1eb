# The engine as an appliance: it plans for the GPU or CPU it finds. Build from the repository's root, with `make images`.
#   docker run --gpus all -p 8000:8000 -p 3001:3001 -v qwen-cache:/cache qwen-engine:0.1.0 Qwen/Qwen3-0.6B
# torch's own packages bring CUDA, so a slim base is enough; the driver comes from the host.
# Above the base: packages of others, then our code, so that a change of code re-sends little.
ARG BASE=python:3.12-slim

FROM ${BASE} AS requirements
COPY docker/requirements.py engine/pyproject.toml /src/engine/
RUN cd /src && python3 engine/requirements.py engine/pyproject.toml:serve > /requirements.txt

# our own packages, compiled to bytecode
FROM ${BASE} AS code
RUN python3 -m venv /opt/tools && /opt/tools/bin/pip install --quiet --no-cache-dir "uv>=0.9,<1"
# The engine's C++ kernels are compiled here; without a compiler it would be slower on CPUs.
RUN apt-get update && apt-get install -y --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY engine ./engine
RUN python3 -m venv --without-pip /opt/venv && /opt/tools/bin/uv pip install --python /opt/venv/bin/python3 --quiet --no-cache --no-deps --compile-bytecode \
    --target /opt/code ./engine

FROM ${BASE}
# elsewhere than in a throw-away cache: --cache-dir=… of a folder that the builder mounts
ARG CACHE=--no-cache
COPY --from=requirements /requirements.txt /opt/
COPY constraints.txt /opt/
# libgomp: what our kernels' threads need. uv comes and goes within the layer.
RUN apt-get update && apt-get install -y --no-install-recommends libgomp1 && rm -rf /var/lib/apt/lists/* \
 && python3 -m venv /opt/tools && /opt/tools/bin/pip install --quiet --no-cache-dir "uv>=0.9,<1" \
 && python3 -m venv --without-pip /opt/venv \
 && /opt/tools/bin/uv pip install --python /opt/venv/bin/python3 --quiet --compile-bytecode --link-mode copy $CACHE \
    --requirement /opt/requirements.txt --constraint /opt/constraints.txt \
 && for packages in /opt/venv/lib/python3.*/site-packages; do echo /opt/code > "$packages/code.pth"; done \
 && echo "nonroot:x:65532:65532::/tmp:/usr/sbin/nologin" >> /etc/passwd \
 && rm -rf /opt/tools /root/.cache
# /cache belongs to the user that runs here, so that a fresh volume mounted on it does too.
RUN mkdir /cache && chown 65532:65532 /cache
COPY --from=code /opt/code /opt/code
RUN --mount=type=bind,source=docker/sbom.py,target=/sbom.py \
    ["/opt/venv/bin/python3", "/sbom.py", "qwen-engine", "/opt/code/sbom.cdx.json"]
ARG VERSION=0.1.0
ARG REVISION=""
LABEL org.opencontainers.image.title="qwen-engine" \
      org.opencontainers.image.description="Serves Qwen3 and Qwen3-VL with paged attention behind an OpenAI-compatible API" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
ENV PATH=/opt/code/bin:/opt/venv/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 HOME=/tmp HF_HOME=/cache/huggingface \
    NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
USER 65532:65532
EXPOSE 8000 3001
VOLUME /cache
ENTRYPOINT ["/opt/code/bin/qwen-engine"]
