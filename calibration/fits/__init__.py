"""Fits to runs: lengths, rewards, iterations and generation, updates and phases, noise.

Own run folders have single iterations and updates (`iterations`, `updates`); logs have seconds of
phases per step (`levels`, `linear`).
"""
