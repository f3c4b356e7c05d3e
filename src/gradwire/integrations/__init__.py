"""Where gradwire meets training code: thin layers over the engine."""
