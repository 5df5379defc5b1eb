# The operator: planner, kopf, API client; no torch. Build from the repository's root:
#   docker build -f docker/operator.Dockerfile -t qwen-operator:0.1.0 .
ARG BASE=python:3.12-slim
FROM ${BASE} AS build
WORKDIR /src
COPY constraints.txt ./
COPY engine ./engine
COPY operator ./operator
RUN python3 -m venv /opt/venv \
 && /opt/venv/bin/pip install --no-cache-dir --constraint constraints.txt ./engine ./operator

FROM ${BASE}
COPY --from=build /opt/venv /opt/venv
ENV PATH=/opt/venv/bin:$PATH PYTHONUNBUFFERED=1 HOME=/tmp
USER 65532:65532
ENTRYPOINT ["/opt/venv/bin/qwen-operator"]
