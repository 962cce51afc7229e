"""Faults over all commands that write: `table` has the promises, and these commands try them.

python -m tests.campaign --rounds 600 --seed 1        random rows and random faults
python -m tests.campaign --rounds 20 prepare resize   only these commands
python -m tests.campaign --fault "failing call" --all every call of every command, once each
"""
