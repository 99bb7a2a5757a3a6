"""Which hosts are this machine itself: the only ones that are asked over plain HTTP, as docker and podman do it."""

from __future__ import annotations

import ipaddress


def is_loopback(host: str) -> bool:
    """host: a name or an address, with or without a port."""
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
