"""Step 1: exports any model as a functional graph, and describes its data flow."""
