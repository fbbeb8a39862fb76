"""The seeds' programs around CNN models: inference, validation, and their input pipelines alone."""

from layermark.seeds.cnns.entry import launch

__all__ = ["launch"]
