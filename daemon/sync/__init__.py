"""Keeps one table in step: the first sync, following the log, comparing states, recovery."""
