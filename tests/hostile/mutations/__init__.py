"""Runs each verb with valid files of all kinds, each with one mutation.

python -m tests.hostile.mutations --cases 20000 --seed 1
"""
