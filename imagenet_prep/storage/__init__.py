"""Where bytes lie: folders, buckets, web servers. Byte ranges in, whole files out."""
