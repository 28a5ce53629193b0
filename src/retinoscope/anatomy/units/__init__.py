"""Step 3: cuts the graph into units, each with its kind, name, cost and parameters."""
