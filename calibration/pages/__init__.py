"""Fits and their judgement in words: terminal, pages, files."""
