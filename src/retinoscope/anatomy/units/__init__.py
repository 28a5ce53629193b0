"""Third: the graph cut into units, each with its kind, its name, its cost and its parameters."""
