"""Spark: its jars, its JVM, its session, Delta's state through it, and tasks that run on it."""
