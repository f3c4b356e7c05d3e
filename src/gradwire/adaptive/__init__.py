"""Controllers: they watch an epoch and choose codecs, batch and rate of the next one."""

from gradwire.adaptive.accordion import Accordion
from gradwire.adaptive.adaqs import AdaQS
from gradwire.adaptive.batch_size import AccordionBatch
from gradwire.adaptive.controller import Controller, Observation, Settings, Switch
from gradwire.adaptive.warmup import Warmup

__all__ = ["Accordion", "AccordionBatch", "AdaQS", "Controller", "Observation", "Settings", "Switch", "Warmup"]
