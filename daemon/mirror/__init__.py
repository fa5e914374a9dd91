"""Mirrors: files with the rows of a data file, in its order, that all readers show as Delta does."""
