"""Build engines: podman and docker behind one Protocol."""
