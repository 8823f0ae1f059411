"""The peers of benchmarks/peers.py: what each needs installed, and what it is asked to do."""

from __future__ import annotations

from dataclasses import dataclass

PLAIN = "plain"
EARLY_EXIT = "early-exit"
PROMPT_LOOKUP = "prompt-lookup"


@dataclass(frozen=True, slots=True)
class Peer:
    """``worker``: a script of peer_workers. ``requirements``: what its environment is made with, exactly; peers with
    the same ``environment`` share one. ``install_options``: for pip, before the requirements. ``arms``: plain first."""

    name: str
    precision: str
    worker: str
    environment: str
    requirements: tuple[str, ...]
    arms: tuple[str, ...] = (PLAIN,)
    install_options: tuple[str, ...] = ()


PEERS: tuple[Peer, ...] = ()
