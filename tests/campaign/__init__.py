"""Faults over the commands that write: `table` has the promises, `python -m tests.campaign` runs it.

python -m tests.campaign --rounds 600 --seed 1        random rows and random faults
python -m tests.campaign --rounds 20 prepare resize   only these commands
python -m tests.campaign --fault "failing call" --all every call of every command, once each
"""
