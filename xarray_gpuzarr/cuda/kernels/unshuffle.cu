// Blocks of Blosc frames with their bytes, or their bits, back in order.
//
// Grid: n * tiles_per_block blocks of 256 threads; each takes every tiles_per_block-th tile of one Blosc block. `table`
// has five columns of n words: source, destination, length below 2^31, typesize from 1 to 255, filter. Filters: 0 none,
// 1 bytes are shuffled, 2 bits are, which takes a multiple of 8 elements. Bytes behind the last whole element are copied.
// Memory: bytes of typesizes 1, 2, 4, 8, 16 go from planes to words of 16 bytes in registers, where all is aligned for
// it. The rest, and bits, goes through shared memory, read and written in aligned words of 4 bytes side by side.
// NumPy, per block, with n = nbytes // typesize and whole = source[: n * typesize]:
// 1: whole.reshape(typesize, n).T
// 2: np.packbits(np.unpackbits(whole, bitorder="little").reshape(typesize, 8, n).transpose(2, 0, 1), -1, "little")

typedef unsigned char u1;
typedef unsigned short u2;
typedef unsigned int u4;
typedef unsigned long long u8;

struct Block {
    const u1* in;
    u1* out;
    u4 nbytes, typesize, n;  // n: elements
};

// ---- in registers

template <u4 n> struct alignas(n < 4 ? 4 : n) Bytes { u4 part[n < 4 ? 1 : n / 4]; };

template <u4 n> __device__ inline Bytes<n> load(const u1* from)
{
    if constexpr (n == 1) return Bytes<1>{{*from}};
    else if constexpr (n == 2) return Bytes<2>{{*(const u2*)from}};
    else return *(const Bytes<n>*)from;
}

template <u4 n> __device__ inline Bytes<2 * n> alternated(const Bytes<n>& a, const Bytes<n>& b)
{
    Bytes<2 * n> both;
    if constexpr (n == 1) both.part[0] = a.part[0] | b.part[0] << 8;
    else if constexpr (n == 2) both.part[0] = __byte_perm(a.part[0], b.part[0], 0x5140);
    else
#pragma unroll
        for (u4 i = 0; i < n / 4; ++i) {
            both.part[2 * i] = __byte_perm(a.part[i], b.part[i], 0x5140);
            both.part[2 * i + 1] = __byte_perm(a.part[i], b.part[i], 0x7362);
        }
    return both;
}

// `width` elements, made of every `step`-th plane.
template <u4 n_planes, u4 width, u4 step = 1> __device__ inline Bytes<n_planes * width> elements(const u1* in, u4 n)
{
    if constexpr (n_planes == 1) return load<width>(in);
    else
        return alternated(elements<n_planes / 2, width, 2 * step>(in, n),
                          elements<n_planes / 2, width, 2 * step>(in + step * n, n));
}

// Returns false, and does nothing, where addresses are not aligned for it.
template <u4 typesize> __device__ inline bool unshuffle_words(const Block& block, u4 tile, u4 n_tiles)
{
    constexpr u4 width = 16 / typesize, ahead = typesize < 8 ? 4 : 2;
    if ((u8)block.out % 16 || (u8)block.in % width || block.n % width) return false;
    const u4 n_words = block.n / width, stride = blockDim.x;
    for (u4 first = tile * ahead * stride + threadIdx.x; first < n_words; first += n_tiles * ahead * stride) {
        Bytes<16> word[ahead];
#pragma unroll
        for (u4 i = 0; i < ahead; ++i) {
            const u4 at = first + i * stride;
            if (at < n_words) word[i] = elements<typesize, width>(block.in + at * width, block.n);
        }
#pragma unroll
        for (u4 i = 0; i < ahead; ++i) {
            const u4 at = first + i * stride;
            if (at < n_words) ((Bytes<16>*)block.out)[at] = word[i];
        }
    }
    return true;
}

// ---- through shared memory

constexpr u4 log_tile = 14;

// One word in 33 is left out: threads that put bytes a power of two apart then meet different banks.
struct Tile {
    u4 words[(1 << log_tile) / 32 * 33 / 4 + 2];

    __device__ void put(u4 at, u4 byte) { ((u1*)words)[at + (at >> 7 << 2)] = (u1)byte; }
    __device__ u4 word(u4 at) const { return words[at + (at >> 5)]; }
};

// Four bytes of the input, of which those behind its end are 0.
__device__ inline u4 word_at(const Block& block, u4 at)
{
    const u4 shift = (u4)(u8)(block.in + at) & 3;
    if (at >= shift && at - shift + (shift ? 8 : 4) <= block.nbytes) {
        const u4* const word = (const u4*)(block.in + at - shift);
        return shift ? word[0] >> 8 * shift | word[1] << (32 - 8 * shift) : word[0];
    }
    u4 word = 0;
#pragma unroll
    for (u4 i = 0; i < 4; ++i)
        if (at + i < block.nbytes) word |= (u4)block.in[at + i] << 8 * i;
    return word;
}

// Bytes k of 4 elements.
__device__ inline void put_bytes(Tile& tile, const Block& block, u4 k, u4 element, u4 at, u4 count)
{
    const u4 word = word_at(block, k * block.n + element);
#pragma unroll
    for (u4 i = 0; i < 4; ++i)
        if (i < count) tile.put(at + i * block.typesize, word >> 8 * i);
}

template <u4 distance, u4 mask> __device__ inline void exchange(u4 (&row)[8])
{
#pragma unroll
    for (u4 j = 0; j < 8; ++j) {
        if (j & distance) continue;
        const u4 differ = (row[j] >> distance ^ row[j + distance]) & mask;
        row[j + distance] ^= differ;
        row[j] ^= differ << distance;
    }
}

// Bytes k of 32 elements: four matrices of 8 x 8 bits are transposed side by side.
__device__ inline void put_bits(Tile& tile, const Block& block, u4 k, u4 element, u4 at, u4 count)
{
    u4 row[8];
#pragma unroll
    for (u4 j = 0; j < 8; ++j) row[j] = word_at(block, (8 * k + j) * (block.n / 8) + element / 8);
    exchange<4, 0x0f0f0f0f>(row);
    exchange<2, 0x33333333>(row);
    exchange<1, 0x55555555>(row);
#pragma unroll
    for (u4 i = 0; i < 32; ++i)
        if (i < count) tile.put(at + i * block.typesize, row[i % 8] >> i / 8 * 8);
}

// The tile's words 4 * i - pad from `out` on; `pad` makes them aligned.
__device__ inline void store(const Tile& tile, u1* out, u4 nbytes, u4 pad)
{
    for (u4 i = threadIdx.x; 4 * i < pad + nbytes; i += blockDim.x) {
        const u4 word = tile.word(i), at = 4 * i;
        u1* const to = out - pad + at;
        if (at >= pad && at + 4 <= pad + nbytes) *(u4*)to = word;
        else
            for (u4 j = 0; j < 4; ++j)
                if (at + j >= pad && at + j < pad + nbytes) to[j] = (u1)(word >> 8 * j);
    }
}

template <bool is_bits>
__device__ inline void unshuffle_tiles(Tile& tile, const Block& block, u4 first_tile, u4 n_tiles)
{
    const u4 typesize = block.typesize;
    u4 log_elements = log_tile, log_item = is_bits ? 5 : 2;
    while (typesize << log_elements > 1u << log_tile) --log_elements;
    for (u8 begin = (u8)first_tile << log_elements; begin < block.n; begin += (u8)n_tiles << log_elements) {
        const u4 first = (u4)begin, left = block.n - first, most = 1u << log_elements;
        const u4 count = left < most ? left : most;
        u1* const out = block.out + first * typesize;
        const u4 pad = (u4)(u8)out & 3, log_items = log_elements - log_item;
        for (u4 item = threadIdx.x; item < typesize << log_items; item += blockDim.x) {
            const u4 k = item >> log_items, element = (item & ((1u << log_items) - 1)) << log_item;
            if (element >= count) continue;
            const u4 at = pad + element * typesize + k;
            if constexpr (is_bits) put_bits(tile, block, k, first + element, at, count - element);
            else put_bytes(tile, block, k, first + element, at, count - element);
        }
        __syncthreads();
        store(tile, out, count * typesize, pad);
        __syncthreads();
    }
}

// ---- any block

__device__ inline bool unshuffle_in_registers(const Block& block, u4 tile, u4 n_tiles)
{
    switch (block.typesize) {
    case 1: return unshuffle_words<1>(block, tile, n_tiles);
    case 2: return unshuffle_words<2>(block, tile, n_tiles);
    case 4: return unshuffle_words<4>(block, tile, n_tiles);
    case 8: return unshuffle_words<8>(block, tile, n_tiles);
    case 16: return unshuffle_words<16>(block, tile, n_tiles);
    default: return false;
    }
}

extern "C" __global__ void unshuffle(u8 table, u8 n, u8 tiles_per_block)
{
    const u4 row = blockIdx.x / (u4)tiles_per_block, n_tiles = (u4)tiles_per_block, tile = blockIdx.x % n_tiles;
    const u8* const column = (const u8*)table + row;
    const u4 nbytes = (u4)column[2 * n], filter = (u4)column[4 * n], typesize = filter ? (u4)column[3 * n] : 1;
    // A copy leaves to its end what fills no word of 16 bytes.
    const u4 n_elements = typesize == 1 && filter < 2 ? nbytes & ~15u : nbytes / typesize;
    const Block block = {(const u1*)column[0], (u1*)column[n], nbytes, typesize, n_elements};

    __shared__ Tile shared;
    if (filter == 2) unshuffle_tiles<true>(shared, block, tile, n_tiles);
    else if (!unshuffle_in_registers(block, tile, n_tiles)) unshuffle_tiles<false>(shared, block, tile, n_tiles);

    if (tile != 0) return;
    for (u4 i = n_elements * typesize + threadIdx.x; i < nbytes; i += blockDim.x) block.out[i] = block.in[i];
}
