"""Backends that misbehave on purpose. Each wraps the PyTorch backend and spoils one thing."""
