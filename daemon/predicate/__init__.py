"""Predicates on the rows of a Delta table, in a subset of Spark SQL that means the same in every session."""
