// Boxes of decoded chunks -> where they belong in the output, cast on the way.
//
// Grid: rows * tiles_per_row blocks of 256 threads; a row is one chunk, a tile 4096 elements of its box. A block of
// threads is 2^log_lanes wide along the last axis and takes the other axes as one. A thread handles 16 elements, four
// loads before four stores: 2^log_steps along the last axis, the others below one another.
// Memory: neighbouring threads read and write neighbouring elements, or, for a transposed chunk, all elements of the
// cache lines that their block reads.
// NumPy, per row: out[out_start : out_start + count] = cast(chunk[in_start : in_start + count * step : step]) on every
// axis, or chunk[index[out_start : out_start + count]] where an axis has an index.

#include "element.cuh"

struct Axis {  // columns are indexed by piece number
    const i8 *in_start, *count, *out_start, *index;
    i8 in_step, in_stride, out_stride, column;  // column: which of the row's piece numbers, or -1 if there is one piece
};

struct Target {
    Cast cast;
    RESULT* out;
    i8 in_first;
    u8 n_axes, row_width, log_lanes, log_steps, tiles_across, unused;
    Axis axis[8];
};

struct Side {  // one axis of the box of this block
    const i8* index;
    i8 in_first, in_step, in_stride, out_first, out_stride;
    u4 count;
};

struct Place {
    i8 in, out;
};

__device__ inline Side side_of(const Axis& axis, const i8* pieces)
{
    const i8 piece = axis.column < 0 ? 0 : pieces[axis.column], out_start = axis.out_start[piece];
    Side side;
    side.index = axis.index ? axis.index + out_start : 0;
    side.in_first = axis.index ? 0 : axis.in_start[piece] * axis.in_stride;
    side.in_step = axis.in_step;
    side.in_stride = axis.in_stride;
    side.out_first = out_start * axis.out_stride;
    side.out_stride = axis.out_stride;
    side.count = (u4)axis.count[piece];
    return side;
}

__device__ inline void advance(Place& place, const Side& side, u4 at)
{
    place.in += side.index ? side.index[at] * side.in_stride : side.in_first + at * side.in_step;
    place.out += side.out_first + at * side.out_stride;
}

// Where the element `below` steps down all axes but the last lies.
__device__ inline Place place_of(const Side* side, u4 n_axes, u4 below)
{
    Place place = {0, 0};
#pragma unroll 1
    for (int axis = (int)n_axes - 2; axis > 0; --axis) {
        const u4 count = side[axis].count, next = below / count;
        advance(place, side[axis], below - next * count);
        below = next;
    }
    if (n_axes > 1) advance(place, side[0], below);
    return place;
}

extern "C" __global__ void scatter(u8 target_address, u8 src_address, u8 row_address, u8 tiles_per_row)
{
    const Target& target = *(const Target*)target_address;
    const u4 row = blockIdx.x / (u4)tiles_per_row, tile = blockIdx.x % (u4)tiles_per_row;
    const u4 n_axes = (u4)target.n_axes;

    __shared__ Side side[8];
    SHARE_OUT(i, n_axes) side[i] = side_of(target.axis[i], (const i8*)row_address + row * target.row_width);
    BLOCK_BARRIER();

    const Cast cast = target.cast;
    const STORED* const src = cast.missing ? cast.missing : ((const STORED* const*)src_address)[row] + target.in_first;
    RESULT* const out = target.out;
    u4 n_below = 1;
#pragma unroll 1
    for (u4 i = 0; i + 1 < n_axes; ++i) n_below *= side[i].count;
    const Side across = side[n_axes - 1];

    const u4 log_lanes = (u4)target.log_lanes, log_steps = (u4)target.log_steps;
    const u4 lanes = 1u << log_lanes, slots = blockDim.x >> log_lanes, steps = 1u << log_steps;
    const u4 tiles_across = (u4)target.tiles_across;
    const u4 first_at = ((tile % tiles_across) << (log_lanes + log_steps)) + (threadIdx.x & (lanes - 1));
    const u4 first_below = (tile / tiles_across) * (slots * (16u >> log_steps)) + (threadIdx.x >> log_lanes);

#pragma unroll 1
    for (u4 item = 0; item < 16; item += 4) {
        STORED value[4];
        RESULT* to[4];
        Place line;
#pragma unroll
        for (u4 i = 0; i < 4; ++i) {
            const u4 below = first_below + ((item + i) >> log_steps) * slots;
            const u4 at = first_at + ((item + i) & (steps - 1)) * lanes;
            to[i] = 0;
            if (below < n_below && at < across.count) {
                if (i == 0 || !log_steps) line = place_of(side, n_axes, below);
                Place place = line;
                advance(place, across, at);
                value[i] = src[place.in];
                to[i] = out + place.out;
            }
        }
#pragma unroll
        for (u4 i = 0; i < 4; ++i)
            if (to[i]) *to[i] = cast_element(value[i], cast);
    }
}
