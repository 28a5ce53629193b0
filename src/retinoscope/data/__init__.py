"""Images by name: the embedded set, files, folders, tables, the hub, or your own Dataset."""
