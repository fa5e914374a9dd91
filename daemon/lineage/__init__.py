"""Lineage for others: which version of a Delta table became which Iceberg snapshot, as OpenLineage tells it."""
