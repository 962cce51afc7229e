"""Plans, writes and checks shards."""
