"""Planner and paged-attention engine for Qwen3 and Qwen3-VL."""

__version__ = "0.1.0"
