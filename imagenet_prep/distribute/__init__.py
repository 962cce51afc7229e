"""Verified replicas of a dataset in other folders, in buckets and on other hosts."""
