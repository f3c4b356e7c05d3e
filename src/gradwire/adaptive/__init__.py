"""Controllers: they watch an epoch and choose codecs, batch and rate of the next one."""

from gradwire.adaptive.accordion import Accordion
from gradwire.adaptive.adaqs import AdaQS
from gradwire.adaptive.batch_size import AccordionBatch
from gradwire.adaptive.controller import Controller, controllers
from gradwire.adaptive.run import ControllerRun
from gradwire.adaptive.values import Choice, Choices, Decision, Observation, Settings, State, Switch
from gradwire.adaptive.warmup import Warmup

__all__ = [
    "Accordion",
    "AccordionBatch",
    "AdaQS",
    "Choice",
    "Choices",
    "Controller",
    "ControllerRun",
    "Decision",
    "Observation",
    "Settings",
    "State",
    "Switch",
    "Warmup",
    "controllers",
]
