"""The configuration: reads, checks and resolves the file and the environment."""
