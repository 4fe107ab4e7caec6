// Running sums of integers: chunks from differences between neighbours to elements.
//
// Grid: n blocks of 256 threads; a block decodes one chunk, 2048 elements at a time. `table` has two columns of n words:
// addresses of the differences and of the elements, aligned to them. Sums wrap around.
// Memory: a thread reads and writes 8 elements in a row, the next thread the 8 behind them.
// NumPy: np.cumsum(encoded, out=decoded)

#include "dtypes.cuh"

constexpr u4 n_threads = 256, n_each = 8;

// Returns the sum of `mine` over all threads before this one, and over all threads in `total`.
__device__ inline u8 sum_before(u8 (&sums)[2][n_threads], u8 mine, u8& total)
{
    const u4 thread = threadIdx.x;
    u4 from = 0;
    sums[0][thread] = mine;
    __syncthreads();
#pragma unroll 1
    for (u4 step = 1; step < n_threads; step *= 2, from ^= 1) {
        sums[from ^ 1][thread] = sums[from][thread] + (thread >= step ? sums[from][thread - step] : 0);
        __syncthreads();
    }
    total = sums[from][n_threads - 1];
    const u8 before = sums[from][thread] - mine;
    __syncthreads();
    return before;
}

extern "C" __global__ void delta(u8 table, u8 n, u8 n_elements, u8 encoded_dtype, u8 decoded_dtype)
{
    __shared__ u8 sums[2][n_threads];
    const u8* const column = (const u8*)table + blockIdx.x;
    const u8 encoded = column[0], decoded = column[n];
    const DType from = dtype_of(encoded_dtype), to = dtype_of(decoded_dtype);
    u8 done = 0;
#pragma unroll 1
    for (u8 first = 0; first < n_elements; first += n_threads * n_each) {
        const u8 begin = first + threadIdx.x * n_each;
        u8 sum[n_each], mine = 0, total;
#pragma unroll
        for (u4 i = 0; i < n_each; ++i) {
            if (begin + i < n_elements) mine += load(from, encoded, (u4)(begin + i));
            sum[i] = mine;
        }
        const u8 before = done + sum_before(sums, mine, total);
#pragma unroll
        for (u4 i = 0; i < n_each; ++i)
            if (begin + i < n_elements) store(to, decoded, (u4)(begin + i), before + sum[i]);
        done += total;
    }
}
