# The engine as an appliance: it plans for the GPU or CPU it finds. Build from the repository's root:
#   docker build -f docker/engine.Dockerfile -t qwen-engine:0.1.0 .
#   docker run --gpus all -p 8000:8000 -p 3001:3001 -v qwen-cache:/cache qwen-engine:0.1.0 serve Qwen/Qwen3-0.6B
# torch's own packages bring CUDA, so a slim base is enough; the driver comes from the host.
ARG BASE=python:3.12-slim
FROM ${BASE} AS build
WORKDIR /src
# The engine's C++ kernels are compiled here; without a compiler it would be slower on CPUs.
RUN apt-get update && apt-get install -y --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*
COPY constraints.txt ./
COPY engine ./engine
RUN python3 -m venv /opt/venv \
 && /opt/venv/bin/pip install --no-cache-dir --constraint constraints.txt "./engine[serve]"

FROM ${BASE}
COPY --from=build /opt/venv /opt/venv
# /cache belongs to the user that runs here, so that a fresh volume mounted on it does too.
RUN mkdir /cache && chown 65532:65532 /cache
ENV PATH=/opt/venv/bin:$PATH PYTHONUNBUFFERED=1 HOME=/tmp HF_HOME=/cache/huggingface \
    NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
USER 65532:65532
EXPOSE 8000 3001
VOLUME /cache
ENTRYPOINT ["/opt/venv/bin/qwen-engine"]
