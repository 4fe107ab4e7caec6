"""The kernels on a GPU, against the same NumPy references and with the same tables as on the host.

The tests are those of `test_kernels`, `test_blosc_kernels`, `test_checksum_kernels`, `test_filter_kernels` and
`test_zstd_kernel`, collected here once more.
"""

import pytest
from helpers.kernels import on_device as kernels_on_device
from helpers.kernels.on_device import Image
from test_blosc_kernels import (  # noqa: F401  # collected here
    test_any_blocks_in_one_launch,
    test_any_bytes_are_decoded_as_c_blosc_does_or_not_at_all,
    test_block_of_any_length,
    test_block_of_any_typesize_and_alignment,
    test_cut_streams_and_other_lengths_are_damaged,
    test_damaged_stream_is_told_from_its_intact_neighbours,
    test_flipped_bits_are_decoded_as_c_blosc_does_or_not_at_all,
    test_frame_of_any_blocksize,
    test_frame_of_any_level,
    test_frame_of_any_typesize,
    test_match_at_any_distance,
    test_match_that_overlaps_itself,
    test_nothing_to_decode,
    test_run_of_literals,
    test_upper_bits_of_the_first_byte_are_ignored,
)
from test_checksum_kernels import (  # noqa: F401  # collected here
    test_any_length_at_any_alignment,
    test_any_messages,
    test_many_messages_in_one_launch,
    test_nothing_to_sum,
    test_published_check_value,
    test_sums_of_equal_bytes_do_not_overflow,
)
from test_filter_kernels import (  # noqa: F401  # collected here
    test_astype,
    test_cast_value,
    test_chunks_of_any_length,
    test_delta,
    test_no_chunks,
    test_number_that_an_integer_cannot_hold_is_left_to_the_host,
    test_packbits,
    test_packbits_that_leave_out_other_bits_are_left_to_the_host,
    test_running_sum_keeps_the_first_nan,
    test_scaled,
    test_scaled_integers,
    test_scaled_to_integers,
    test_value_that_stands_for_another_one,
)
from test_kernels import (  # noqa: F401  # collected here
    test_a_chunk_of_many_points,
    test_any_box_is_what_numpy_indexes,
    test_any_byte_but_zero_is_true,
    test_arithmetic_rounds_as_numpy_does,
    test_array_without_dimensions,
    test_big_endian_is_converted,
    test_box_is_what_numpy_indexes,
    test_conversion_is_numpys,
    test_copy_restores_byte_order,
    test_integers_of_one_width_are_reinterpreted,
    test_mask_is_compared_in_the_result_dtype,
    test_missing_chunks_take_the_cast_fill_value,
    test_nan_constant_gives_nan,
    test_points_are_what_numpy_indexes,
    test_result_is_not_contracted,
    test_runs_of_any_alignment_are_moved,
)
from test_zstd_kernel import (  # noqa: F401  # collected here
    test_all_frames_at_once_are_judged_like_each_alone,
    test_block_sizes_must_be_possible,
    test_each_of_many_frames_is_judged_by_itself,
    test_every_window_descriptor_limits_the_block,
    test_frame_of_endless_blocks_is_given_up,
    test_no_frames_are_no_launch,
    test_single_segment_is_its_own_window,
    test_unusual_zstd_frames_are_left_to_the_host,
    test_zstd_frame_cut_at_any_byte_is_refused_though_the_rest_follows_it,
)

from xarray_gpuzarr.process.device_options import ResourceOptions

pytestmark = pytest.mark.gpu

CAPACITY = 64 << 20


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
