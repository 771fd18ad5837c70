"""Pages: one file each, with their data and all that draws it inside."""
