"""What figures show, as plain data made from results; the page and matplotlib draw the same."""
