"""Second: what each operation of a graph does, and what the dimensions of its tensors mean."""
