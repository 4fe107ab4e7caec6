// Place single elements of decoded chunks anywhere in a flat output, and cast them.
//
// Grid: ceil(n_rows / (256 >> log_lanes)) * tiles_per_row blocks of 256 threads; a row is the points of one chunk.
// 2^log_lanes threads share a row. A tile is 16 points for each of them, taken with four loads before four stores.
// Memory: the columns of points are read in order; elements and results may lie anywhere.
// NumPy, per row: out[position[first:end]] = cast(chunk.ravel()[chunk_offset[first:end]])

#include "cast.cuh"

struct Target {
    Cast cast;
    RESULT* out;
    const i8 *bounds, *chunk_offset, *position;  // chunk_offset: null for missing chunks
    u8 log_lanes;
};

constexpr u4 n_each = 4;

extern "C" __global__ void points(u8 target_address, u8 src_address, u8 row_address, u8 n_rows, u8 tiles_per_row)
{
    const Target& target = *(const Target*)target_address;
    const u4 log_lanes = (u4)target.log_lanes, lanes = 1u << log_lanes;
    const u8 row = (u8)(blockIdx.x / (u4)tiles_per_row) * (blockDim.x >> log_lanes) + (threadIdx.x >> log_lanes);
    if (row >= n_rows) return;

    const Cast cast = target.cast;
    const STORED* const src = cast.missing ? cast.missing : ((const STORED* const*)src_address)[row];
    const i8 *const chunk_offset = target.chunk_offset, *const position = target.position;
    RESULT* const out = target.out;
    const i8 group = ((const i8*)row_address)[row], end = target.bounds[group + 1];
    const i8 first = target.bounds[group] + (i8)(blockIdx.x % (u4)tiles_per_row) * (16 * lanes);
#pragma unroll 1
    for (u4 item = threadIdx.x & (lanes - 1); item < 16 * lanes && first + item < end; item += n_each * lanes) {
        STORED stored[n_each];
        RESULT result[n_each];
        i8 to[n_each];
#pragma unroll
        for (u4 i = 0; i < n_each; ++i) {  // behind the last point, the last point is loaded again
            const i8 point = first + item + i * lanes < end ? first + item + i * lanes : end - 1;
            stored[i] = src[chunk_offset ? chunk_offset[point] : 0];
            to[i] = position[point];
        }
        cast_elements(stored, result, cast);
#pragma unroll
        for (u4 i = 0; i < n_each; ++i)
            if (first + item + i * lanes < end) out[to[i]] = result[i];
    }
}
