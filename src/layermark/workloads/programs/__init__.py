"""Workloads that are not a graph. Every module or package here is one."""
