"""Names to images: the embedded set, files, folders, tables, the hub, a Dataset of your own."""
