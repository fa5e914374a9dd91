"""The source: Delta's log, actions and deletion vectors. Knows nothing of Iceberg."""
