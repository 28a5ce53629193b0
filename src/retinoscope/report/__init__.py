"""Builds one report.html from run folders."""
