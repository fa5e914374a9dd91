"""The target: Iceberg snapshots, manifests and position deletes, on PyIceberg. Knows nothing of Delta."""
