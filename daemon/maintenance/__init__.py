"""What happens beside the syncs: compaction, snapshot expiry, cleanup of files that nothing refers to."""
