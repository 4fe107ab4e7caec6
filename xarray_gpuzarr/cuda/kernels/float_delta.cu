// Running sums of floating numbers: chunks from differences between neighbours to elements.
//
// Grid: n blocks of 32 threads; a block decodes one chunk, 128 elements at a time. `table` has two columns of n words:
// addresses of the differences and of the elements, aligned to them. Compiled for the type SUM that is added up in.
// Every sum is rounded, so there is only one order: one thread adds, the others load and store.
// Memory: neighbouring threads read and write neighbouring elements.
// NumPy: np.cumsum(encoded, dtype=SUM).astype(decoded)

#include "dtypes.cuh"

typedef Unsigned<sizeof(SUM)>::type Bits;

constexpr u4 n_lanes = 32, n_ahead = 4 * n_lanes;

// A NaN stays one: unless the last sum is, none was, and payloads need no care. Where a second one comes, NumPy keeps
// the payload of either, as it was compiled; here it is that of the first.
__device__ inline SUM add_up(SUM (&value)[n_ahead], u4 count, SUM before)
{
    SUM last = before, kept[n_lanes];
#pragma unroll 1
    for (u4 first = 0; first < count; first += n_lanes) {
        const SUM start = last;
#pragma unroll
        for (u4 i = 0; i < n_lanes; ++i) kept[i] = value[first + i];
#pragma unroll
        for (u4 i = 0; i < n_lanes; ++i) value[first + i] = last = rounded_sum(last, kept[i]);
        if (!is_nan(bits<Bits>(last))) continue;
        last = start;
#pragma unroll
        for (u4 i = 0; i < n_lanes; ++i) value[first + i] = last = sum(last, kept[i]);
    }
    return last;
}

extern "C" __global__ void float_delta(u8 table, u8 n, u8 n_elements, u8 encoded_dtype, u8 decoded_dtype)
{
    __shared__ SUM value[n_ahead];
    const u8* const column = (const u8*)table + blockIdx.x;
    const u8 encoded = column[0], decoded = column[n];
    const DType from = dtype_of(encoded_dtype), to = dtype_of(decoded_dtype);
    const DType inner = {sizeof(SUM), 'f', 0};
    SUM done = bits<SUM>(Float<Bits>::sign);  // -0, to which anything may be added
#pragma unroll 1
    for (u8 first = 0; first < n_elements; first += n_ahead) {
        const u4 count = n_elements - first < n_ahead ? (u4)(n_elements - first) : n_ahead;
        for (u4 i = threadIdx.x; i < n_ahead; i += n_lanes)
            value[i] = i < count ? number<SUM>(from, load(from, encoded, (u4)first + i)) : SUM{};
        __syncwarp();
        if (threadIdx.x == 0) {
            const SUM head = value[0];
            done = add_up(value, count, done);
            if (first == 0) value[0] = head;  // copied, which leaves a signalling NaN as it is
        }
        __syncwarp();
        for (u4 i = threadIdx.x; i < count; i += n_lanes)
            store(to, decoded, (u4)first + i, as_floating(inner, bits<Bits>(value[i]), to));
        __syncwarp();
    }
}
