"""The configuration: the file and the environment, read, checked and resolved."""
