"""Mathematics that is independent of models and data."""
