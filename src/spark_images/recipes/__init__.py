"""Recipes to serve models: read and checked, and turned into what to run."""
