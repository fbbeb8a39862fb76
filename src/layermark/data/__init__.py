"""Pictures from files: sources that read them, preprocessing, and a loader that works ahead in other processes.

Nothing here knows a framework; everything is NumPy arrays. `docs/data.md` describes formats and options.
"""
