"""One figure per file; the only room that imports matplotlib."""
