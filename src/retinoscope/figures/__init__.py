"""Figures as plain data, made from results; the report and matplotlib draw from the same data."""
