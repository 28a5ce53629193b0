"""The build-up rule as an experiment: candidates are built, trained, scored, kept or refused."""
