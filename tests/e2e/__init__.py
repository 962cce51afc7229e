"""Walks of people who use the program for the first time: the README, its pages, nothing else."""
