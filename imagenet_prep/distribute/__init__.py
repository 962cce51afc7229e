"""Replicas: a data set's bytes in other folders, in buckets and on other hosts, proven there."""
