"""Public data sets: one file each, as they are published or in a compact form, from a folder or over the network."""
