"""Reproducible container images for NVIDIA GB10 and its neighbours."""

__version__ = "0.1.0"
