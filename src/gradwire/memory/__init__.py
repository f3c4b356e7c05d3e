"""Memories: wrappers round any codec that keep, per worker and parameter, what was not sent."""

from gradwire.memory.error_feedback import ErrorFeedback
from gradwire.memory.momentum_correction import MomentumCorrection
from gradwire.memory.none import NoMemory

__all__ = ["ErrorFeedback", "MomentumCorrection", "NoMemory"]
