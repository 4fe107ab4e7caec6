"""The kernels on a GPU, against the same NumPy references and with the same tables as on the host.

The tests are those of the kernels on the host, collected here once more.
"""

import pytest
import test_blosc_kernels
import test_checksum_kernels
import test_filter_kernels
import test_kernels
import test_zstd_kernel
from helpers.kernels import on_device as kernels_on_device
from helpers.kernels.on_device import Image

from xarray_gpuzarr.process.device_options import ResourceOptions

pytestmark = pytest.mark.gpu

CAPACITY = 64 << 20
HOST_ONLY = {
    "test_barrier_that_a_part_of_a_warp_leaves_out_aborts",
    "test_longest_message",
    "test_sanitizers_catch_wrong_tables",
    "test_some_runs_of_a_table_are_moved",
}

for module in (test_blosc_kernels, test_checksum_kernels, test_filter_kernels, test_kernels, test_zstd_kernel):
    found = {name: test for name, test in vars(module).items() if name.startswith("test_")}
    globals().update({name: test for name, test in found.items() if name not in HOST_ONLY})


@pytest.fixture(scope="module")
def image():
    """Memory of the first GPU."""
    from xarray_gpuzarr.cuda.device import NativeDevice  # noqa: PLC0415  # needs CuPy and RMM

    device = NativeDevice(0, ResourceOptions())
    with device.activate():
        image = Image(device, CAPACITY)
        yield image
        image.close()


@pytest.fixture(scope="module", autouse=True)
def on_gpu(request):
    """Let kernels run on the GPU while this module's tests do."""
    with pytest.MonkeyPatch.context() as patch:
        kernels_on_device.use(request.getfixturevalue("image"), patch)
        yield
