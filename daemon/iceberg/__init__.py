"""The target: Iceberg snapshots, manifests and position deletes, on PyIceberg. It does not know Delta."""
