"""Maintenance, which runs beside the syncs: compaction, snapshot expiry, cleanup of unreferenced files."""
