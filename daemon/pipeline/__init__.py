"""The work on many files: deletion vectors into delete files, footers inspected, data manifests written."""
