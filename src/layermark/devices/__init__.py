"""Devices: the environment before an import, counters and budgets."""
