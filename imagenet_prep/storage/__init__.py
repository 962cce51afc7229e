"""Storage in folders, buckets and on web servers: reads byte ranges, writes complete files."""
