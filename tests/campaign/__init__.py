"""Faults over the verbs that write, and what must hold after each of them.

python -m tests.campaign --rounds 600 --seed 1     random faults, several in a round
python -m tests.campaign --only changing-prepare   the source changes between two runs
python -m tests.campaign.failing                   every call of the system fails once
python -m tests.campaign.power                     the power is lost at every moment
python -m tests.campaign.power --later             after a kill, and a run that finishes
python -m tests.campaign.meeting                   a second run while the first is stopped
python -m tests.campaign.losing                    a finished product loses a file, or half of one
"""
