"""Mathematics that has never heard of a model."""
