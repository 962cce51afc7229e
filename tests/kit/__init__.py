"""Helpers that several test packages share: the miniature ILSVRC2012, servers, faults."""
