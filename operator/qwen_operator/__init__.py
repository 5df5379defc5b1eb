"""Kubernetes operator that plans, serves and scales Qwen3 models."""

__version__ = "0.1.0"
