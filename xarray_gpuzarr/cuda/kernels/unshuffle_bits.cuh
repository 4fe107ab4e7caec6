// Undo the bit shuffle for typesizes 1, 2, 4, 8 and 16: from planes to words of 16 bytes, which the threads of a warp
// exchange through shared memory.

// One of the three steps that transpose matrices of 8 x 8 bits: swap squares of `distance` x `distance` bits.
template <u4 distance, u4 mask> __device__ inline void exchange(u4 (&row)[8])
{
#pragma unroll
    for (u4 j = 0; j < 8; ++j) {
        if (j & distance) continue;
        const u4 a = row[j], b = row[j + distance];
        row[j] = (a & mask) | (b << distance & ~mask);
        row[j + distance] = (a >> distance & mask) | (b & ~mask);
    }
}

// Transpose four matrices of 8 x 8 bits, which lie side by side in the rows.
__device__ inline void transpose_bits(u4 (&row)[8])
{
    exchange<4, 0x0f0f0f0f>(row);
    exchange<2, 0x33333333>(row);
    exchange<1, 0x55555555>(row);
}

// Set word i to byte i of each argument.
__device__ inline void transpose_bytes(u4 a, u4 b, u4 c, u4 d, u4 (&word)[4])
{
    const u4 ab = __byte_perm(a, b, 0x5140), cd = __byte_perm(c, d, 0x5140);
    const u4 ab_high = __byte_perm(a, b, 0x7362), cd_high = __byte_perm(c, d, 0x7362);
    word[0] = __byte_perm(ab, cd, 0x5410);
    word[1] = __byte_perm(ab, cd, 0x7632);
    word[2] = __byte_perm(ab_high, cd_high, 0x5410);
    word[3] = __byte_perm(ab_high, cd_high, 0x7632);
}

// A warp handles `n_groups` groups of 32 elements. `n_parts` lanes share a group: each takes `n_bytes` bytes of every
// element.
template <u4 typesize> struct Bits {
    static constexpr u4 n_bytes = typesize < 4 ? typesize : 4, n_parts = typesize / n_bytes;
    static constexpr u4 n_groups = n_lanes / n_parts, group_units = 2 * typesize;  // unit: 16 bytes
    u4 row[n_bytes][8];

    __device__ Bits(const u1* in, u4 plane, bool is_aligned)
    {
#pragma unroll
        for (u4 k = 0; k < n_bytes; ++k, in += 8 * plane) {
            if (is_aligned)
#pragma unroll
                for (u4 j = 0; j < 8; ++j) row[k][j] = load<4>(in + j * plane).part[0];
            else
#pragma unroll
                for (u4 j = 0; j < 8; ++j) row[k][j] = load_anywhere<4>(in + j * plane).part[0];
            transpose_bits(row[k]);
        }
    }

    // Return the place of a unit in shared memory, chosen so that lanes that access it together use different banks.
    static __device__ u4 place(u4 unit)
    {
        constexpr u4 log_row = typesize == 16 ? 5 : typesize == 8 ? 4 : 3;
        return unit ^ (unit >> log_row & 7);
    }

    // Set word i to bytes of the elements t' + 8 * i and those behind it, as many as fit into four bytes; t' is
    // 4 * t / n_bytes.
    __device__ void take(u4 t, u4 (&word)[4]) const
    {
        u4 from[4];
#pragma unroll
        for (u4 i = 0; i < 4; ++i) from[i] = row[i % n_bytes][t * 4 / n_bytes + i / n_bytes];
        transpose_bytes(from[0], from[1], from[2], from[3], word);
    }

    __device__ void put(Bytes<16>* units, u4 lane) const
    {
        const u4 first = lane / n_parts * group_units;
        if constexpr (n_parts > 1) {
#pragma unroll
            for (u4 t = 0; t < 8; ++t) {
                u4 word[4];
                take(t, word);
#pragma unroll
                for (u4 i = 0; i < 4; ++i) {
                    constexpr u4 per_unit = 4 / n_parts;
                    const u4 element = 8 * i + t, unit = element / per_unit;
                    // This is units[place(first + unit)], computed with fewer registers.
                    Bytes<16>& to = units[first + unit / 8 * 8 + (unit % 8 ^ (lane / n_parts & 7))];
                    to.part[element % per_unit * n_parts + lane % n_parts] = word[i];
                }
            }
        } else {
            constexpr u4 n = n_bytes == 1 ? 2 : 4;  // number of neighbouring words
#pragma unroll
            for (u4 t = 0; t < 2 * n_bytes; t += n) {
                u4 word[n][4];
#pragma unroll
                for (u4 i = 0; i < n; ++i) take(t + i, word[i]);
#pragma unroll
                for (u4 i = 0; i < n; ++i) {  // each of n units
                    Bytes<16> unit;
#pragma unroll
                    for (u4 j = 0; j < 4; ++j) unit.part[j] = word[j % n][i * 4 / n + j / n];
                    units[place(first + (2 * n_bytes * (i * 4 / n) + t) / 4)] = unit;
                }
            }
        }
    }
};

// Return false, and do nothing, if results are not aligned to 16 bytes.
template <u4 typesize>
__device__ inline bool unshuffle_bits(Bytes<16>* shared, const Block& block, u4 tile, u4 n_tiles)
{
    typedef Bits<typesize> Mine;
    constexpr u4 n_units = Mine::n_groups * Mine::group_units;
    if ((u8)block.out % 16) return false;
    const u4 lane = threadIdx.x % n_lanes, warp = threadIdx.x / n_lanes, plane = block.n / 8;
    const bool is_aligned = ((u8)block.in | plane) % 4 == 0;
    // `load_anywhere` reads a few bytes before and behind, which must be the block's: keep off both ends.
    const u4 edge = is_aligned ? 0 : 1, n_groups = block.n / 32 > edge ? block.n / 32 - edge : edge;
    Bytes<16>* const units = shared + warp * n_units;
    const u1* const in = block.in + lane % Mine::n_parts * 8 * Mine::n_bytes * plane;
    constexpr u4 warp_groups = Mine::n_groups;
    const u4 begin = edge + (tile * n_warps + warp) * warp_groups;
    for (u4 first = begin; first < n_groups; first += n_tiles * n_warps * warp_groups) {
        const u4 group = first + lane / Mine::n_parts;
        if (group < n_groups) Mine(in + 4 * group, plane, is_aligned).put(units, lane);
        __syncwarp();
        Bytes<16>* const out = (Bytes<16>*)block.out + first * Mine::group_units;
        const u4 count = (n_groups - first) * Mine::group_units;
#pragma unroll
        for (u4 at = lane; at < n_units; at += n_lanes)
            if (at < count) out[at] = units[Mine::place(at)];
        __syncwarp();
    }
    const bool has_groups = n_groups > edge;
    if (tile == 0) unshuffle_ends<true>(block, has_groups ? 32 * edge : 0, has_groups ? 32 * n_groups : 0);
    return true;
}
