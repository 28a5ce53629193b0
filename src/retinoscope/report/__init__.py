"""Run folders in, one report.html out."""
