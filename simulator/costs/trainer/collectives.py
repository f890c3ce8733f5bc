"""Collectives of GPUs that each send at one rate: seconds by the bytes that leave each of them."""

from __future__ import annotations


def gather_s(size_bytes: float, gpus: int, bytes_per_s: float) -> float:
    """An all-gather to ``size_bytes``, or a reduce-scatter of as many: (n - 1) / n of them leave
    each GPU of a ring."""
    return size_bytes * (gpus - 1) / gpus / bytes_per_s


def all_reduce_s(size_bytes: float, gpus: int, bytes_per_s: float, floor_s: float = 0.0) -> float:
    """An all-reduce of ``size_bytes``, a reduce-scatter and an all-gather, after ``floor_s``."""
    return floor_s + 2 * gather_s(size_bytes, gpus, bytes_per_s)


def all_to_all_s(
    sent_bytes: float, gpus: int, node: int, near_bytes_per_s: float, far_bytes_per_s: float
) -> float:
    """What each of ``gpus`` GPUs sends to all of them evenly: to those of its node of ``node`` at
    one rate, and then to the others at another."""
    near = min(gpus, node)
    inside = sent_bytes * (near - 1) / gpus / near_bytes_per_s
    return inside + sent_bytes * (gpus - near) / gpus / far_bytes_per_s
