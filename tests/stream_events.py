"""A stand-in for torch.cuda.Event: over once the device has come so far. Milliseconds, as there."""

from __future__ import annotations


class StreamEvent:
    launched, done, waits = 0.0, 0.0, 0

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing

    @classmethod
    def reset(cls) -> None:
        cls.launched, cls.done, cls.waits = 0.0, 0.0, 0

    def record(self) -> None:
        self.at = StreamEvent.launched

    def query(self) -> bool:
        return self.at <= StreamEvent.done

    def synchronize(self) -> None:
        StreamEvent.waits += 1
        StreamEvent.done = max(StreamEvent.done, self.at)

    def elapsed_time(self, end: StreamEvent) -> float:
        assert self.query(), "torch raises"
        assert end.query(), "torch raises"
        return end.at - self.at
