"""Walks of people who use the program for the first time, with the README, its pages and nothing else."""
