"""`cupy` and `rmm` as far as `cuda.device` calls them, on host memory: what was called is kept, any call can be made to
fail."""

from __future__ import annotations

import gc
import itertools
import time
from types import ModuleType, SimpleNamespace

from helpers.simulated.contexts import Contexts

PROPERTIES = {"name": b"NVIDIA H200", "uuid": bytes(range(16)), "major": 9, "minor": 0}

NEED_NO_CONTEXT = {
    *("getDevice", "setDevice", "ctxGetCurrent", "ctxSetCurrent", "getDeviceProperties", "deviceGetPCIBusId"),
    *("driverGetVersion", "runtimeGetVersion", "deviceGetAttribute", "get_current_stream"),
    *("set_allocator", "set_pinned_memory_allocator", "set_per_device_resource", "set_current_device_resource"),
}
"""Calls that CUDA answers on a thread without a context, or that are none of CUDA's."""


class Thing(SimpleNamespace):
    """One that can be waited for to die."""


class Pinned(bytearray):
    """Likewise."""


class DeviceMemoryResource:
    """What all of RMM's resources do; `fake` is told when they do it."""

    fake = None

    def allocate(self, nbytes, stream):
        return self.fake.call("allocate", lambda *_: self.fake.take(nbytes))(nbytes, stream, self)

    def deallocate(self, address, nbytes, stream):
        self.fake.call("deallocate", lambda *_: self.fake.give_back(address))(nbytes, stream, self)


class CudaMemoryResource(DeviceMemoryResource):
    """RMM's plain resource."""


class CudaAsyncMemoryResource(DeviceMemoryResource):
    """RMM's resource over ``cudaMallocAsync``."""


class CudaAsyncViewMemoryResource(DeviceMemoryResource):
    """RMM's resource over a pool of the driver's. What makes it takes long enough for threads to meet."""

    def __init__(self, pool_handle):
        self.handle = pool_handle


class UpstreamResource(DeviceMemoryResource):
    """What RMM's pools and adaptors have in common."""

    def __init__(self, upstream_mr, **options):
        self.upstream_mr = upstream_mr
        self.options = options


class PoolMemoryResource(UpstreamResource):
    """RMM's pool."""


class StatisticsResourceAdaptor(UpstreamResource):
    """RMM's counter around another resource."""


class TrackingResourceAdaptor(UpstreamResource):
    """RMM's list of what was allocated, around another resource."""


class CUDARuntimeError(RuntimeError):
    """CuPy's error of a runtime call."""


class CompileException(Exception):  # noqa: N818  # CuPy's name
    """CuPy's error of NVRTC, which is no RuntimeError."""


class RmmStream:
    """RMM's view of a stream."""

    def __init__(self, obj):
        self.obj = obj


class FakeCuda:
    """The two modules and their state; `failures` has what a call of some name raises."""

    def __init__(self):
        self.calls = []
        self.failures = {}
        self.current_resource = CudaMemoryResource()
        self.allocator = "CuPy's own"
        self.current_stream = 0
        self.contexts = Contexts()
        self.has_async = True
        self.pools = {}
        """Attributes of each of the driver's pools, by its handle; its device as ``"device"``."""
        self._taken = {}
        self._at = itertools.count(4096, 4096)
        DeviceMemoryResource.fake = self

    def take(self, nbytes):
        address = next(self._at)
        self._taken[address] = nbytes
        return address

    def give_back(self, address):
        del self._taken[address]

    def taken(self):
        gc.collect()
        return list(self._taken.values())

    def called(self, name):
        return [args for called, *args in self.calls if called == name]

    def call(self, name, returns=None):
        """Return a function of that name: it is kept, fails if it should, and returns `returns(...)`."""

        def function(*args, **kwargs):
            self.calls.append((name, *args, *kwargs.values()))
            if name in self.failures:
                raise self.failures[name]
            if name not in NEED_NO_CONTEXT:
                self.contexts.need(name)
            return returns(*args, **kwargs) if returns else None

        return function

    def modules(self):
        """Return what to put into `sys.modules`."""
        cupy, rmm = self._cupy(), self._rmm()
        return {
            "cupy": cupy,
            "cupy.cuda": cupy.cuda,
            "cupy.cuda.compiler": cupy.cuda.compiler,
            **self._bindings(),
            "rmm": rmm,
            "rmm.allocators": rmm.allocators,
            "rmm.allocators.cupy": rmm.allocators.cupy,
            "rmm.pylibrmm": rmm.pylibrmm,
            "rmm.pylibrmm.stream": rmm.pylibrmm.stream,
        }

    def _cupy(self):
        runtime = SimpleNamespace(
            memcpyHostToDevice=1,
            memcpyDeviceToHost=2,
            cudaDevAttrMemoryPoolsSupported=115,
            memcpyAsync=self.call("memcpyAsync"),
            getDevice=self.call("getDevice", lambda: self.contexts.device),
            setDevice=self.call("setDevice", self.contexts.set_device),
            getDeviceProperties=self.call("getDeviceProperties", lambda _: dict(PROPERTIES)),
            deviceGetPCIBusId=self.call("deviceGetPCIBusId", lambda _: "0000:01:00.0"),
            driverGetVersion=self.call("driverGetVersion", lambda: 13020),
            runtimeGetVersion=self.call("runtimeGetVersion", lambda: 13000),
            memGetInfo=self.call("memGetInfo", lambda: (300, 1000)),
            deviceSynchronize=self.call("deviceSynchronize"),
            CUDARuntimeError=CUDARuntimeError,
            deviceGetAttribute=self.call("deviceGetAttribute", lambda *_: int(self.has_async)),
        )
        stream = self.call("Stream", lambda **_: self.contexts.dying(self._stream(7), "streamDestroy"))
        stream.from_external = lambda other: self._stream(other.__cuda_stream__()[1])
        cuda = module(
            "cupy.cuda",
            runtime=runtime,
            compiler=module("cupy.cuda.compiler", CompileException=CompileException),
            driver=module(
                "cupy.cuda.driver",
                ctxGetCurrent=self.call("ctxGetCurrent", lambda: self.contexts.context),
                ctxSetCurrent=self.call("ctxSetCurrent", self.contexts.set_context),
            ),
            Stream=stream,
            Event=self.call(
                "Event", lambda **_: self._dying("eventDestroy", ptr=11, record=self.call("record", lambda *_: None))
            ),
            get_current_stream=self.call("get_current_stream", lambda: self._stream(self.current_stream)),
            PinnedMemory=self.call("PinnedMemory", lambda nbytes: self.contexts.dying(Pinned(nbytes), "freeHost")),
            PinnedMemoryPointer=lambda memory, _offset: memory,
            UnownedMemory=lambda ptr, nbytes, owner, index: SimpleNamespace(
                ptr=ptr, nbytes=nbytes, owner=owner, index=index
            ),
            MemoryPointer=lambda memory, offset: SimpleNamespace(ptr=memory.ptr + offset, mem=memory),
            get_allocator=lambda: self.allocator,
            set_allocator=self.call("set_allocator", lambda allocator: vars(self).update(allocator=allocator)),
            set_pinned_memory_allocator=self.call("set_pinned_memory_allocator"),
        )
        ndarray = lambda shape, dtype, data: SimpleNamespace(shape=shape, dtype=dtype, data=data)  # noqa: E731
        return module(
            "cupy",
            __version__="14.2.0",
            cuda=cuda,
            ndarray=ndarray,
            asarray=self.call("asarray", lambda values: values),
            get_default_memory_pool=lambda: SimpleNamespace(free_all_blocks=self.call("free_all_blocks")),
            RawModule=self.call("RawModule", self._raw_module),
        )

    def _bindings(self):
        """Return the modules of ``cuda-bindings``, whose functions return an error and a value."""
        success = SimpleNamespace(name="cudaSuccess")

        def answering(name, returns=lambda *_: None):
            function = self.call(name, returns)

            def answer(*args):
                try:
                    return success, function(*args)
                except RuntimeError as error:
                    return SimpleNamespace(name=str(error)), None

            return answer

        names = ("ReuseAllowInternalDependencies", "AttrReleaseThreshold", "AttrUsedMemCurrent")
        runtime = module(
            "cuda.bindings.runtime",
            cudaError_t=SimpleNamespace(cudaSuccess=success),
            cudaMemAllocationType=SimpleNamespace(cudaMemAllocationTypePinned=1),
            cudaMemLocationType=SimpleNamespace(cudaMemLocationTypeDevice=1),
            cudaMemPoolAttr=SimpleNamespace(**{f"cudaMemPool{name}": name for name in names}),
            cudaMemPoolProps=lambda: SimpleNamespace(location=SimpleNamespace()),
            cudaMemPoolCreate=answering("cudaMemPoolCreate", self._new_pool),
            cudaMemPoolSetAttribute=answering(
                "cudaMemPoolSetAttribute", lambda pool, name, value: self.pools[pool].update({name: value})
            ),
            cudaMemPoolGetAttribute=answering("cudaMemPoolGetAttribute", lambda *_: sum(self._taken.values())),
            cudaMemPoolDestroy=answering("cudaMemPoolDestroy", self.pools.pop),
        )
        driver = module("cuda.bindings.driver", cuuint64_t=lambda value: SimpleNamespace(value=value))
        bindings = module("cuda.bindings", runtime=runtime, driver=driver)
        return {"cuda": module("cuda", bindings=bindings), "cuda.bindings": bindings}

    def _new_pool(self, properties):
        time.sleep(0.01)  # long enough for threads to meet
        handle = 1 + len(self.pools)
        self.pools[handle] = {"device": properties.location.id}
        return handle

    def _rmm(self):
        mr = SimpleNamespace(
            CudaMemoryResource=CudaMemoryResource,
            CudaAsyncMemoryResource=CudaAsyncMemoryResource,
            CudaAsyncViewMemoryResource=CudaAsyncViewMemoryResource,
            PoolMemoryResource=PoolMemoryResource,
            LimitingResourceAdaptor=type("LimitingResourceAdaptor", (UpstreamResource,), {}),
            LoggingResourceAdaptor=type("LoggingResourceAdaptor", (UpstreamResource,), {}),
            StatisticsResourceAdaptor=StatisticsResourceAdaptor,
            TrackingResourceAdaptor=TrackingResourceAdaptor,
            FailureCallbackResourceAdaptor=type("FailureCallbackResourceAdaptor", (UpstreamResource,), {}),
            PrefetchResourceAdaptor=type("PrefetchResourceAdaptor", (UpstreamResource,), {}),
            get_per_device_resource=lambda _index: self.current_resource,
            set_per_device_resource=self.call(
                "set_per_device_resource", lambda _index, resource: vars(self).update(current_resource=resource)
            ),
            set_current_device_resource=self.call("set_current_device_resource"),
        )
        stream = module("rmm.pylibrmm.stream", Stream=RmmStream)
        return module(
            "rmm",
            __version__="26.10.0",
            mr=mr,
            allocators=module(
                "rmm.allocators", cupy=module("rmm.allocators.cupy", rmm_cupy_allocator="RMM's for CuPy")
            ),
            pylibrmm=module("rmm.pylibrmm", stream=stream),
            reinitialize=self.call("reinitialize"),
        )

    def _stream(self, handle):
        return Thing(
            ptr=handle,
            synchronize=self.call("synchronize"),
            wait_event=lambda _event: self.call("wait_event")(),
            use=self.call("use", lambda: vars(self).update(current_stream=handle)),
        )

    def _dying(self, call, **members):
        return self.contexts.dying(Thing(**members), call)

    def _raw_module(self, **_options):
        time.sleep(0.01)  # long enough for threads to meet
        return SimpleNamespace(get_function=lambda name: SimpleNamespace(kernel=self.call(f"launch {name}")))


def module(name, **members):
    made = ModuleType(name)
    vars(made).update(members)
    return made
