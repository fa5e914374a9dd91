"""Writes Delta logs: all code that does, and none that others can reach but by `deletion.py`. A test checks that."""
