"""Catalogs of Delta tables: what tables there are, and what is committed to those that a catalog manages."""
