"""Spark: its jars, JVM and session; reading Delta's state with it; running tasks on it."""
