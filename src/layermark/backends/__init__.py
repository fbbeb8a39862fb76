"""Runtimes: a file or a small package each. Only a worker imports the framework behind one."""
