// Undo a delta of floating numbers: turn differences between neighbours into running sums.
//
// Grid: n blocks of 64 threads; a block decodes one chunk, 128 elements at a time. `table` has two columns of n words:
// addresses of the differences and of the elements, aligned to them. Compiled for SUM, the type of the sums.
// Every sum is rounded, so the order of additions is fixed, and one thread adds: a chunk takes the latency of one addition
// for each of its elements. Meanwhile another warp stores the previous tile and loads the next one.
// Memory: neighbouring threads read and write neighbouring elements.
// NumPy: np.cumsum(encoded, dtype=SUM).astype(decoded)

#include "dtypes.cuh"

typedef Unsigned<sizeof(SUM)>::type Bits;

constexpr u4 n_lanes = 32, n_each = 4, n_tile = n_each * n_lanes;
constexpr u4 n_kept = sizeof(SUM) == 4 ? 16 : 8;  // 16 of f4 take as many registers as 8 of f8; divides n_tile / 2

struct alignas(16) Tile { SUM value[n_tile]; };

// Some elements in registers, loaded well before they are added.
struct Kept {
    SUM value[n_kept];

    __device__ void load(const SUM* from)
    {
#pragma unroll
        for (u4 i = 0; i < n_kept; ++i) value[i] = from[i];
    }

    // Write the running sums, after the sum `last`; return the last one.
    __device__ SUM add_up(SUM* sums, SUM last) const
    {
#pragma unroll
        for (u4 i = 0; i < n_kept; ++i) sums[i] = last = rounded_sum(last, value[i]);
        return last;
    }
};

// Write the running sums of a tile, after the sum `before`; return the last one. Once a sum is NaN, all later ones are. So
// if the last one is not NaN, none is, and payloads need no care. If several elements are NaN, NumPy keeps the payload of
// any one of them, depending on how it was compiled. This code keeps the first.
__device__ inline SUM add_up(const Tile& numbers, Tile& sums, u4 count, SUM before)
{
    SUM last = before;
    Kept these, next;
    these.load(numbers.value);
#pragma unroll 1
    for (u4 first = 0; first < count; first += 2 * n_kept) {
        next.load(numbers.value + first + n_kept);
        last = these.add_up(sums.value + first, last);
        if (first + 2 * n_kept < n_tile) these.load(numbers.value + first + 2 * n_kept);
        last = next.add_up(sums.value + first + n_kept, last);
    }
    if (!is_nan(bits<Bits>(last))) return last;
    last = before;
#pragma unroll 1
    for (u4 i = 0; i < count; ++i) sums.value[i] = last = sum(last, numbers.value[i]);
    return last;
}

// Loads differences for the thread that adds, and stores its sums; run by the other warp. A plain dtype is SUM in the
// machine's byte order.
struct Carrier {
    u8 encoded, decoded, n_elements;
    DType from, to;
    u4 lane;
    u8 ahead[n_each];  // differences of a later tile that this lane has loaded, as words

    __device__ static bool is_plain(const DType& dtype)
    {
        return dtype.kind == 'f' && dtype.nbytes == sizeof(SUM) && !dtype.is_swapped;
    }

    // Return the number of elements in the tile that begins with element `first`.
    __device__ u4 count(u8 first) const { return n_elements - first < n_tile ? (u4)(n_elements - first) : n_tile; }

    __device__ void load_ahead(u8 first)
    {
        if (first >= n_elements) return;
        const u4 at = (u4)first + lane, n = count(first);
        if (is_plain(from))
#pragma unroll
            for (u4 i = 0; i < n_each; ++i) ahead[i] = lane + i * n_lanes < n ? ((const Bits*)encoded)[at + i * n_lanes] : 0;
        else
#pragma unroll
            for (u4 i = 0; i < n_each; ++i) ahead[i] = lane + i * n_lanes < n ? load(from, encoded, at + i * n_lanes) : 0;
    }

    // Write the differences that were loaded ahead, and zeros behind the last one.
    __device__ void fill(Tile& tile, u8 first) const
    {
        if (first >= n_elements) return;
        SUM* const value = tile.value + lane;
        if (is_plain(from))
#pragma unroll
            for (u4 i = 0; i < n_each; ++i) value[i * n_lanes] = bits<SUM>((Bits)ahead[i]);
        else
#pragma unroll
            for (u4 i = 0; i < n_each; ++i) value[i * n_lanes] = number<SUM>(from, ahead[i]);
    }

    // Store the sums of the tile that begins with element `first`.
    __device__ void store_sums(const Tile& tile, u8 first) const
    {
        const DType inner = {sizeof(SUM), 'f', 0};
        const u4 n = count(first);
        if (is_plain(to))
#pragma unroll
            for (u4 i = 0; i < n_each; ++i) {
                const u4 at = lane + i * n_lanes;
                if (at < n) ((Bits*)decoded)[first + at] = bits<Bits>(tile.value[at]);
            }
        else
            for (u4 i = lane; i < n; i += n_lanes)
                store(to, decoded, (u4)first + i, as_floating(inner, bits<Bits>(tile.value[i]), to));
    }
};

extern "C" __global__ void float_delta(u8 table, u8 n, u8 n_elements, u8 encoded_dtype, u8 decoded_dtype)
{
    __shared__ Tile numbers[2], sums[2];
    const u8* const column = (const u8*)table + blockIdx.x;
    const DType from = dtype_of(encoded_dtype), to = dtype_of(decoded_dtype);
    Carrier carrier = {column[0], column[n], n_elements, from, to, threadIdx.x % n_lanes, {}};
    const bool is_carrier = threadIdx.x >= n_lanes;
    if (is_carrier) {
        carrier.load_ahead(0);
        carrier.fill(numbers[0], 0);
        carrier.load_ahead(n_tile);
    }
    __syncthreads();
    SUM done = bits<SUM>(Float<Bits>::sign);  // -0, which changes no number that is added to it
    u4 turn = 0;
#pragma unroll 1
    for (u8 first = 0; first < n_elements; first += n_tile, turn ^= 1) {
        if (is_carrier) {
            if (first > 0) carrier.store_sums(sums[turn ^ 1], first - n_tile);
            carrier.fill(numbers[turn ^ 1], first + n_tile);
            carrier.load_ahead(first + 2 * n_tile);
        } else if (threadIdx.x == 0) {
            done = add_up(numbers[turn], sums[turn], carrier.count(first), done);
            if (first == 0) sums[0].value[0] = numbers[0].value[0];  // not a sum, so a signalling NaN stays one
        }
        __syncthreads();
    }
    if (is_carrier && n_elements > 0) carrier.store_sums(sums[turn ^ 1], (n_elements - 1) / n_tile * n_tile);
}
