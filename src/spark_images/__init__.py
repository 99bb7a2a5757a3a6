"""Reproducible container images for NVIDIA GB10 and its neighbours."""
