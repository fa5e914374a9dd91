"""When each table is polled, synced, tried again and maintained, and how many at once."""
