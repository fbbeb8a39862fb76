"""Suites: YAML files that list what to measure."""
