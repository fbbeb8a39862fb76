"""The CNN models, one file a family."""
