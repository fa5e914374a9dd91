"""The data pipeline: the Arrow kernel from DVs to delete files, and Spark that runs it for many files."""
