"""Runs: subjects, keys, pieces and engines, with every result stored in one folder."""
