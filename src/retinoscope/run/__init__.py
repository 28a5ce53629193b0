"""A run is a folder: subjects, keys, pieces, engines."""
