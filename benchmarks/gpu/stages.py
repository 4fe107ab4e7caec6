"""Where the time of one read goes: a `DeviceApi` that listens to the decoder, and is slower for it.

Host time is split by the ranges that the decoder marks for profilers, device time by what the streams are given. The
engine itself is not touched, and nothing of this is on its path otherwise.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

from benchmarks.gpu.device import Gpu
from benchmarks.gpu.stopwatch import Stopwatch
from xarray_gpuzarr.cuda.address import Address
from xarray_gpuzarr.cuda.api import Bytes, DeviceApi, Event, Kernel, Stream
from xarray_gpuzarr.decoders.cuda import CudaDecoder
from xarray_gpuzarr.read import StoredArray, read

_AFTER = {"index": "plan", "fetch": "check", "transfer": "tables", "decode": "tables", "place": "tables"}
"""What the host does once it leaves a range."""
_OF_KERNEL = {"scatter": "place", "points": "place", "move": "move"}
WAITING = ("index", "fetch", "wait")
"""What the host does not work on itself."""


class Recorder:
    """One GPU, and a note of how long each stage takes. For reads from one thread.

    Parameters
    ----------
    gpu : Gpu
    with_marks : bool
        Whether device time is measured too, which costs two events for everything that is enqueued.
    """

    def __init__(self, gpu: Gpu, *, with_marks: bool) -> None:
        self._gpu = gpu
        self._api = gpu.api
        self._with_marks = with_marks
        self._streams: dict[int, Stream] = {}
        self._marks: list[tuple[str, Any, Any]] = []
        self._host = Stopwatch("plan")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._api, name)

    @property
    def as_api(self) -> DeviceApi:
        """Itself: what is not overridden here is the GPU's own."""
        return cast("DeviceApi", self)

    def start(self) -> None:
        """Forget everything, and let the clock run."""
        self._marks.clear()
        self._host.restart()

    def stop(self) -> dict[str, float]:
        """Return seconds by stage since `start`."""
        found = {f"host, {label}": seconds for label, seconds in self._host.stop().items()}
        device: Counter[str] = Counter()
        for label, first, last in self._marks:
            device[label] += self._gpu.seconds(first, last)  # type: ignore[assignment]  # seconds, not counts
        return found | {f"device, {label}": float(seconds) for label, seconds in device.items()}

    # ---- what the decoder calls

    @property
    def nvcomp(self) -> Any:
        """Note what its batches take."""
        return _RecordedNvcomp(self, self._api.nvcomp)

    @contextmanager
    def range(self, name: str) -> Iterator[None]:
        """Note what the host is at."""
        label = name.removeprefix("read::")
        self._host.enter(label)
        with self._api.range(name):
            yield
        self._host.enter(_AFTER.get(label, "plan"))

    def stream(self) -> Stream:
        """Remember streams by their handles, which is all that nvCOMP is told."""
        stream = self._api.stream()
        self._streams[stream.handle] = stream
        return stream

    def synchronize(self, stream: Stream) -> None:
        """Note that the host waits."""
        with self._host.within("wait"):
            self._api.synchronize(stream)

    def synchronize_event(self, event: Event) -> None:
        """Note that the host waits."""
        with self._host.within("wait"):
            self._api.synchronize_event(event)

    def upload(self, to: Address, data: Bytes, stream: Stream) -> None:
        """Note what the copy takes: of encoded chunks, or of tables."""
        with self.marked("transfer" if self._host.label == "transfer" else "tables", stream):
            self._api.upload(to, data, stream)

    def download(self, into: Bytes, start: Address, stream: Stream) -> None:
        """Note what the copy takes."""
        with self.marked("receipt", stream):
            self._api.download(into, start, stream)

    def launch(self, kernel: Kernel, n_blocks: int, n_threads: int, args: Sequence[int], stream: Stream) -> None:
        """Note what the kernel takes."""
        with self.marked(_OF_KERNEL.get(kernel.name, kernel.name), stream):
            self._api.launch(kernel, n_blocks, n_threads, args, stream)

    # ---- notes

    @contextmanager
    def marked(self, label: str, stream: Stream | int) -> Iterator[None]:
        """Note how long a stream works on what it is given inside."""
        if not self._with_marks:
            yield
            return
        of = self._streams[stream] if isinstance(stream, int) else stream
        first = self._gpu.mark(of)
        yield
        self._marks.append((label, first, self._gpu.mark(of)))


class _RecordedNvcomp:
    def __init__(self, recorder: Recorder, nvcomp: Any) -> None:
        self._recorder = recorder
        self._nvcomp = nvcomp

    def __getattr__(self, name: str) -> Any:
        return getattr(self._nvcomp, name)

    def decompress(self, fmt: Any, /, batch: Any, *, stream: int, **sizes: int) -> None:
        with self._recorder.marked(f"nvCOMP {fmt}", stream):
            self._nvcomp.decompress(fmt, batch, stream=stream, **sizes)


class RecordedReads:
    """Reads of one array through a decoder that is listened to."""

    def __init__(self, gpu: Gpu, stored: StoredArray, selection: Any, *, with_marks: bool) -> None:
        self._gpu = gpu
        self._recorder = Recorder(gpu, with_marks=with_marks)
        self._stored, self._selection = stored, selection
        self._decoder = CudaDecoder(lambda: self._recorder.as_api)

    def run(self) -> Any:
        """Read once."""
        return read(self._stored, self._selection, self._decoder)

    def stages(self) -> dict[str, float]:
        """Read once; return seconds by stage, and together."""
        self._gpu.synchronize()
        self._recorder.start()
        start = time.perf_counter()
        result = self.run()
        took = time.perf_counter() - start
        found = self._recorder.stop()
        del result
        return {"": took} | found

    def host_seconds(self) -> dict[str, float]:
        """Read once; return what the calling thread worked itself: no index, no file, no waiting for the device."""
        found = self.stages()
        idle = {f"host, {label}" for label in WAITING}
        return {"": sum(s for label, s in found.items() if label.startswith("host, ") and label not in idle)}


def count_calls(run: Callable[[], object]) -> tuple[int, int]:
    """Return how many Python functions and how many functions of C a call calls, on this thread."""
    counted: Counter[str] = Counter()
    sys.setprofile(lambda _frame, event, _argument: counted.update((event,)))
    try:
        run()
    finally:
        sys.setprofile(None)
    return counted["call"], counted["c_call"]
