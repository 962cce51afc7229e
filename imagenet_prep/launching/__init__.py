"""Ranks on hosts: which are fit, how they are started, followed and ended."""
