"""Sound files of every kind that a verb reads, each with something wrong in it, before every verb.

python -m tests.hostile.mutations --cases 20000 --seed 1
"""
