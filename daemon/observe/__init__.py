"""What the daemon says of its work: log and traces."""
