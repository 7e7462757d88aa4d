"""Which names can only mean this machine."""

import ipaddress


def is_loopback(host: str) -> bool:
    """Whether a host name or address, brackets or not, can only mean this machine."""
    bare = host.strip("[]")
    if bare.lower().rstrip(".") == "localhost":
        return True
    try:
        return ipaddress.ip_address(bare).is_loopback
    except ValueError:
        return False
