"""Choose a TCP port on the loopback that nobody listens on."""

import random
import socket

LOOPBACK = "127.0.0.1"
CHOSEN_FROM = (12_000, 32_000)
_RANDOM = random.SystemRandom()


def free_port() -> int:
    """A port that nobody listens on; whoever starts a server on it reports if it was taken in the meantime.

    It lies below the range from which systems choose the ports of outgoing connections: a server may take seconds to start,
    and until then any connection could have been given a port of that range. Processes choose at random, each for itself.
    """
    while True:
        port = _RANDOM.randrange(*CHOSEN_FROM)
        if not is_taken(port):
            return port


def is_taken(port: int) -> bool:
    """Whether a server on the loopback already holds the port."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return True
    return False
