"""Which image goes into which shard, writing a shard, and checking one."""
