// Single elements of decoded chunks -> anywhere in a flat output, cast on the way.
//
// Grid: ceil(n_rows / (256 >> log_lanes)) * tiles_per_row blocks of 256 threads; a row is the points of one chunk.
// 2^log_lanes threads share a row and take 16 of its points each in a tile.
// Memory: the columns of points are read in order; elements and results lie anywhere.
// NumPy, per row: out[position[first:end]] = cast(chunk.ravel()[within[first:end]])

#include "element.cuh"

struct Target {
    Cast cast;
    RESULT* out;
    const i8 *bounds, *within, *position;  // within: null for missing chunks
    u8 log_lanes;
};

extern "C" __global__ void points(u8 target_address, u8 src_address, u8 row_address, u8 n_rows, u8 tiles_per_row)
{
    const Target& target = *(const Target*)target_address;
    const u4 log_lanes = (u4)target.log_lanes, lanes = 1u << log_lanes;
    const u8 row = (u8)(blockIdx.x / (u4)tiles_per_row) * (blockDim.x >> log_lanes) + (threadIdx.x >> log_lanes);
    if (row >= n_rows) return;

    const Cast cast = target.cast;
    const STORED* const src = cast.missing ? cast.missing : ((const STORED* const*)src_address)[row];
    const i8 *const within = target.within, *const position = target.position;
    RESULT* const out = target.out;
    const i8 group = ((const i8*)row_address)[row], end = target.bounds[group + 1];
    i8 point = target.bounds[group] + (i8)(blockIdx.x % (u4)tiles_per_row) * (16 * lanes) + (threadIdx.x & (lanes - 1));
    for (u4 item = 0; item < 16 && point < end; ++item, point += lanes) {
        const STORED stored[1] = {src[within ? within[point] : 0]};
        RESULT result[1];
        cast_elements(stored, result, cast);
        out[position[point]] = result[0];
    }
}
