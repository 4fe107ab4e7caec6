// Undo either shuffle for any typesize and any addresses, byte by byte through shared memory.

// Return four bytes of the input; bytes behind its end are 0.
__device__ inline u4 word_at(const Block& block, u4 at)
{
    if (at >= 3 && at + 8 <= block.nbytes) return load_anywhere<4>(block.in + at).part[0];
    u4 word = 0;
#pragma unroll 1
    for (u4 i = 0; i < 4; ++i)
        if (at + i < block.nbytes) word |= (u4)block.in[at + i] << 8 * i;
    return word;
}

// Elements lie in shared memory in groups of 4 or 32. Groups are an odd number of words apart, so that threads that write
// the same bytes of several groups use different banks.
struct Groups {
    u4 log_elements, nbytes;  // of a group: binary logarithm of the number of its elements, and length in bytes
    u4 stride, log_n;  // words from one group to the next; binary logarithm of the number of groups that fit
    u4 reciprocal;  // 2^32 divided by the number of words of a group, rounded up; 0 for one word, which has no gaps

    __device__ Groups(u4 log_elements, u4 typesize)
        : log_elements(log_elements), nbytes(typesize << log_elements), stride(nbytes / 4 | 1), log_n(10)
    {
        while (stride << log_n > n_shared) --log_n;
        reciprocal = 0xffffffffu / (nbytes / 4) + 1;
    }

    // Return word `at`, counted over all groups.
    __device__ u4 word(const u4* shared, u4 at) const
    {
        return shared[at + (u4)((u8)at * reciprocal >> 32) * (stride - nbytes / 4)];
    }
};

// Write elements of a byte shuffle to shared memory, from element `first` on, as many as fit. In a turn, a thread writes
// byte k of 4 elements. The loads of 4 turns are issued together.
__device__ inline void put_bytes(u4* shared, const Groups& groups, const Block& block, u4 first)
{
    constexpr u4 ahead = 4;
    const u4 typesize = block.typesize, n_items = typesize << groups.log_n;
    for (u4 begin = threadIdx.x; begin < n_items; begin += ahead * n_threads) {
        u4 word[ahead];
#pragma unroll
        for (u4 j = 0; j < ahead; ++j) {
            const u4 item = begin + j * n_threads, k = item >> groups.log_n;
            const u4 element = first + 4 * (item - (k << groups.log_n));
            if (item < n_items && element < block.n) word[j] = word_at(block, k * block.n + element);
        }
#pragma unroll
        for (u4 j = 0; j < ahead; ++j) {
            const u4 item = begin + j * n_threads, k = item >> groups.log_n, group = item - (k << groups.log_n);
            if (item >= n_items || first + 4 * group >= block.n) continue;
            u1* to = (u1*)(shared + group * groups.stride) + k;
#pragma unroll
            for (u4 i = 0; i < 4; ++i, to += typesize) *to = (u1)(word[j] >> 8 * i);
        }
    }
}

// Write elements of a bit shuffle to shared memory, from element `first` on, as many as fit. In a turn, a thread writes byte
// k of 32 elements.
__device__ inline void put_bits(u4* shared, const Groups& groups, const Block& block, u4 first)
{
    const u4 typesize = block.typesize, plane = block.n / 8;
    for (u4 item = threadIdx.x; item < typesize << groups.log_n; item += n_threads) {
        const u4 k = item >> groups.log_n, group = item - (k << groups.log_n), element = first + 32 * group;
        if (element >= block.n) continue;
        u4 row[8];
#pragma unroll
        for (u4 j = 0; j < 8; ++j) row[j] = word_at(block, (8 * k + j) * plane + element / 8);
        transpose_bits(row);
        u1* to = (u1*)(shared + group * groups.stride) + k;
#pragma unroll
        for (u4 i = 0; i < 32; ++i, to += typesize) *to = (u1)(row[i % 8] >> i / 8 * 8);
    }
}

// Write shared memory to the output in aligned words of 4 bytes, the first of which begins at `out - before`.
__device__ inline void store(const u4* shared, const Groups& groups, u1* out, u4 nbytes)
{
    const u4 before = (u4)(u8)out & 3, end = before + nbytes;
    for (u4 i = threadIdx.x; 4 * i < end; i += n_threads) {
        u4 word = before && 4 * i >= end - before ? 0 : groups.word(shared, i);
        if (before) word = joined(i ? groups.word(shared, i - 1) : 0, word, 32 - 8 * before);
        u1* const to = out - before + 4 * i;
        if (4 * i >= before && 4 * i + 4 <= end) *(u4*)to = word;
        else
#pragma unroll 1
            for (u4 j = 0; j < 4; ++j)
                if (4 * i + j >= before && 4 * i + j < end) to[j] = (u1)(word >> 8 * j);
    }
}

template <bool is_bits>
__device__ inline void unshuffle_tiles(u4* shared, const Block& block, u4 tile, u4 n_tiles)
{
    const Groups groups(is_bits ? 5 : 2, block.typesize);
    const u4 log_elements = groups.log_n + groups.log_elements;
    for (u8 begin = (u8)tile << log_elements; begin < block.n; begin += (u8)n_tiles << log_elements) {
        const u4 first = (u4)begin, left = block.n - first, most = 1u << log_elements;
        if constexpr (is_bits) put_bits(shared, groups, block, first);
        else put_bytes(shared, groups, block, first);
        __syncthreads();
        store(shared, groups, block.out + first * block.typesize, (left < most ? left : most) * block.typesize);
        __syncthreads();
    }
}
