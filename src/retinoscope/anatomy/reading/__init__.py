"""Step 2: determines what each operation of a graph does and what its dimensions mean."""
