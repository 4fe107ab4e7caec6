// Place boxes of decoded chunks in the output, and cast them.
//
// Grid: rows * tiles_per_row blocks of 256 threads; a row is one chunk. A tile has up to 8192 elements of the chunk's box: a
// part of the last axis by up to 256 lines, which are positions on all other axes. The addresses of lines are computed
// once per tile. A thread handles 4 elements at a time, with four loads before four stores.
// Memory: neighbouring threads read and write neighbouring elements. A transposed chunk is first read along the axis along
// which it is contiguous, into shared memory.
// NumPy, per row: out[out_start : out_start + count] = cast(chunk[in_start : in_start + count * step : step]) on every
// axis, or chunk[index[out_start : out_start + count]] where an axis has an index.

#include "cast.cuh"

// Columns are indexed by piece number. `column` is the position of the axis among a row's piece numbers, or -1 if the axis
// has a single piece.
struct Axis {
    const i8 *in_start, *count, *out_start, *index;
    i8 in_step, in_stride, out_stride, column;
};

struct Target {
    Cast cast;
    RESULT* out;
    i8 in_first;
    u8 n_axes, row_width;  // row_width: number of piece numbers of a row
    u8 width, n_lines, tiles_across;  // as in `axes.Tiling`
    u8 pitch;  // elements between lines in shared memory; 0 if tiles are not transposed
    Axis axis[8];
};

struct Side {  // one axis of the box that this block of threads works on; all but `index` and `count` in elements
    const i8* index;
    i8 in_first, in_step, in_stride, out_first, out_stride;
    u4 count;
};

struct Line {  // addresses of the first element of a line, in the chunk and in the output
    u8 in, out;
};

constexpr u4 n_threads = 256, n_each = 4;
constexpr u4 max_lines = 256, stage_nbytes = 17408;  // `MAX_LINES` and `STAGE_NBYTES` of axes.py

// Return address + at * step. This is one instruction, which compilers do not choose by themselves.
__device__ inline u8 stepped(u8 address, i4 at, i4 step)
{
    u8 result;
    asm("mad.wide.s32 %0, %1, %2, %3;" : "=l"(result) : "r"(at), "r"(step), "l"(address));
    return result;
}

// Divides numbers below 2^15 by a number up to 2^13, with one multiplication: `factor` is 2^31 / divisor, rounded up.
struct Divisor {
    u4 divisor, factor;

    __device__ explicit Divisor(u4 by) : divisor(by), factor((0x7fffffffu + by) / by) {}
    __device__ u4 quotient(u4 number) const { return __umulhi(2 * number, factor); }
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

// Move the addresses to position `at` of an axis.
__device__ inline void advance(Line& line, const Side& side, u4 at)
{
    line.in += sizeof(STORED) * (side.index ? side.index[at] * side.in_stride : side.in_first + at * side.in_step);
    line.out += sizeof(RESULT) * (side.out_first + at * side.out_stride);
}

// Return line `number`, counted over all axes except the last. `line` has the addresses at the start of the chunk and of the
// output, moved along the last axis already.
__device__ inline Line line_of(Line line, const Side* side, u4 n_axes, u4 number)
{
#pragma unroll 1
    for (int axis = (int)n_axes - 2; axis > 0; --axis) {
        const u4 count = side[axis].count, outer = number / count;
        advance(line, side[axis], number - outer * count);
        number = outer;
    }
    if (n_axes > 1) advance(line, side[0], number);
    return line;
}

// Sources of elements. `at` is the position along a line of the tile.

struct Strided {
    const Line* lines;
    i4 step;

    __device__ STORED at(u4 line, i4 at) const { return *(const STORED*)stepped(lines[line].in, at, step); }
};

struct Indexed {
    const Line* lines;
    const i8* index;
    i8 stride;

    __device__ STORED at(u4 line, i4 at) const { return *(const STORED*)(lines[line].in + index[at] * stride); }
};

struct Staged {
    const STORED* stage;
    u4 pitch;

    __device__ STORED at(u4 line, i4 at) const { return stage[line * pitch + at]; }
};

// Return `number`, or `last` if that is less: threads behind the last element load it again, but do not store it.
__device__ inline u4 up_to(u4 number, u4 last) { return number < last ? number : last; }

// Cast the `n` elements of a tile of lines of `width` elements, and write them to the output.
template <class Source>
__device__ inline void place(const Source& source, const Line* lines, u4 width, u4 n, i4 out_step, const Cast& cast)
{
    const Divisor by_width(width);
#pragma unroll 1
    for (u4 first = threadIdx.x; first < n; first += n_each * n_threads) {
        STORED stored[n_each];
        RESULT result[n_each];
        u8 to[n_each];
#pragma unroll
        for (u4 i = 0; i < n_each; ++i) {
            const u4 number = up_to(first + i * n_threads, n - 1), line = by_width.quotient(number);
            const i4 at = (i4)(number - line * width);
            stored[i] = source.at(line, at);
            to[i] = stepped(lines[line].out, at, out_step);
        }
        cast_elements(stored, result, cast);
#pragma unroll
        for (u4 i = 0; i < n_each; ++i)
            if (first + i * n_threads < n) *(RESULT*)to[i] = result[i];
    }
}

// Read a tile into shared memory. Neighbouring threads take neighbouring lines.
template <class Source> __device__ inline void fill_stage(STORED* stage, u4 pitch, const Source& source, u4 n_lines, u4 n)
{
    const Divisor by_lines(n_lines);
#pragma unroll 1
    for (u4 first = threadIdx.x; first < n; first += n_each * n_threads) {
        STORED stored[n_each], *to[n_each];
#pragma unroll
        for (u4 i = 0; i < n_each; ++i) {
            const u4 number = up_to(first + i * n_threads, n - 1), at = by_lines.quotient(number);
            const u4 line = number - at * n_lines;
            to[i] = stage + line * pitch + at;
            stored[i] = source.at(line, (i4)at);
        }
#pragma unroll
        for (u4 i = 0; i < n_each; ++i)
            if (first + i * n_threads < n) *to[i] = stored[i];
    }
}

extern "C" __global__ void scatter(u8 target_address, u8 src_address, u8 row_address, u8 tiles_per_row)
{
    __shared__ Side side[8];
    __shared__ Line lines[max_lines];
    __shared__ STORED stage[stage_nbytes / sizeof(STORED)];
    const Target& target = *(const Target*)target_address;
    const u4 row = blockIdx.x / (u4)tiles_per_row, tile = blockIdx.x % (u4)tiles_per_row;
    const u4 n_axes = (u4)target.n_axes, tiles_across = (u4)target.tiles_across, pitch = (u4)target.pitch;
    const Cast cast = target.cast;
    if (threadIdx.x < n_axes)
        side[threadIdx.x] = side_of(target.axis[threadIdx.x], (const i8*)row_address + row * target.row_width);
    __syncthreads();

    u4 n_box_lines = 1;
#pragma unroll 1
    for (u4 i = 0; i + 1 < n_axes; ++i) n_box_lines *= side[i].count;
    const Side across = side[n_axes - 1];
    const u4 first_at = tile % tiles_across * (u4)target.width, first_line = tile / tiles_across * (u4)target.n_lines;
    if (first_at >= across.count || first_line >= n_box_lines) return;
    const u4 width = across.count - first_at < (u4)target.width ? across.count - first_at : (u4)target.width;
    const u4 lines_left = n_box_lines - first_line;
    const u4 n_lines = lines_left < (u4)target.n_lines ? lines_left : (u4)target.n_lines;
    const u4 n = width * n_lines;

    if (threadIdx.x < n_lines) {
        const STORED* const src =
            cast.missing ? cast.missing : ((const STORED* const*)src_address)[row] + target.in_first;
        Line start = {(u8)src, (u8)target.out};
        start.in += sizeof(STORED) * (across.index ? 0 : across.in_first + first_at * across.in_step);
        start.out += sizeof(RESULT) * (across.out_first + first_at * across.out_stride);
        lines[threadIdx.x] = line_of(start, side, n_axes, first_line + threadIdx.x);
    }
    __syncthreads();

    const i4 out_step = (i4)(sizeof(RESULT) * across.out_stride);
    const Strided strided = {lines, (i4)(sizeof(STORED) * across.in_step)};
    const Indexed indexed = {lines, across.index + first_at, (i8)sizeof(STORED) * across.in_stride};
    if (pitch) {
        if (across.index) fill_stage(stage, pitch, indexed, n_lines, n);
        else fill_stage(stage, pitch, strided, n_lines, n);
        __syncthreads();
        place(Staged{stage, pitch}, lines, width, n, out_step, cast);
    } else if (across.index) {
        place(indexed, lines, width, n, out_step, cast);
    } else {
        place(strided, lines, width, n, out_step, cast);
    }
}
