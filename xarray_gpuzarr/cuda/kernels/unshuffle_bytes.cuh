// Undo the byte shuffle for typesizes 1, 2, 4, 8 and 16: from planes to words of 16 bytes, in registers.

// Return the bytes of `a` and `b` in turn: a[0], b[0], a[1], b[1] and so on.
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

// Return `width` neighbouring elements, made of `n_planes` planes that are `step` planes apart, the first of them at `in`.
// `n` is the length of a plane.
template <u4 n_planes, u4 width, bool is_aligned, u4 step = 1>
__device__ inline Bytes<n_planes * width> elements(const u1* in, u4 n)
{
    if constexpr (n_planes == 1) return is_aligned ? load<width>(in) : load_anywhere<width>(in);
    else
        return alternated(elements<n_planes / 2, width, is_aligned, 2 * step>(in, n),
                          elements<n_planes / 2, width, is_aligned, 2 * step>(in + step * n, n));
}

// Write `n_words` words of 16 bytes, each of `width` elements, from element `begin` on. A thread loads `ahead` words before
// it writes them.
template <u4 typesize, bool is_aligned>
__device__ inline void unshuffle_words(const Block& block, u4 begin, u4 n_words, u4 tile, u4 n_tiles)
{
    constexpr u4 width = 16 / typesize, ahead = typesize < 8 ? 4 : 2;
    Bytes<16>* const out = (Bytes<16>*)(block.out + begin * typesize);
    for (u4 first = tile * ahead * n_threads + threadIdx.x; first < n_words; first += n_tiles * ahead * n_threads) {
        Bytes<16> word[ahead];
#pragma unroll
        for (u4 i = 0; i < ahead; ++i) {
            const u4 at = first + i * n_threads;
            if (at < n_words) word[i] = elements<typesize, width, is_aligned>(block.in + begin + at * width, block.n);
        }
#pragma unroll
        for (u4 i = 0; i < ahead; ++i) {
            const u4 at = first + i * n_threads;
            if (at < n_words) out[at] = word[i];
        }
    }
}

// Return false, and do nothing, if elements cross the borders of words of 16 bytes.
template <u4 typesize> __device__ inline bool unshuffle_bytes(const Block& block, u4 tile, u4 n_tiles)
{
    constexpr u4 width = 16 / typesize;
    if ((u8)block.out % typesize) return false;
    const u4 skipped = (u4)(-(u8)block.out % 16) / typesize;
    const bool is_aligned = !((u8)(block.in + skipped) % width || (typesize > 1 && block.n % width));
    // `load_anywhere` reads a few bytes before and behind, which must be the block's: keep off both ends.
    const u4 edge = is_aligned || width < 4 ? 0 : width, begin = skipped + edge;
    const u4 n_words = block.n > begin + edge ? (block.n - begin - edge) / width : 0;
    if (is_aligned) unshuffle_words<typesize, true>(block, begin, n_words, tile, n_tiles);
    else unshuffle_words<typesize, false>(block, begin, n_words, tile, n_tiles);
    if (tile == 0) unshuffle_ends<false>(block, n_words ? begin : 0, n_words ? begin + n_words * width : 0);
    return true;
}
