"""The work on many files: translates deletion vectors into delete files, inspects footers, writes data manifests."""
