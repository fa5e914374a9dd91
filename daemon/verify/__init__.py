"""Proves that an Iceberg table shows what its Delta table has, at three levels."""
