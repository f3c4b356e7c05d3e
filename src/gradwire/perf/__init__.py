"""How long a step takes, with and without compression, before anybody has run it. No file here imports torch."""
