"""Trainers: Accelerate, Lightning and Hugging Face, a thin file each. None is loaded unless asked for."""
