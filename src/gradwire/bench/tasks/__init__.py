"""Small learning problems, data included: one task, one file, nothing to download."""
