"""What operators see of each table: its state and its error."""
