"""Random faults over the verbs that write, and what must hold after each of them.

python -m tests.campaign --rounds 600 --seed 1
"""
