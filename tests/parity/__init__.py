"""The engine against transformers, and attention backends against their oracle."""
