// Undo the shuffle of bytes or of bits in blocks of Blosc frames.
//
// Grid: n * tiles_per_block blocks of 256 threads; each takes every tiles_per_block-th tile of one Blosc block. `table`
// has five columns of n words: source, destination, length below 2^31, typesize from 1 to 255, filter. Filters: 0 none,
// 1 shuffle of bytes, 2 shuffle of bits, which needs a multiple of 8 elements. Bytes behind the last whole element are
// copied as they are.
// Memory: typesizes 1, 2, 4, 8 and 16 are read in the longest words that a plane allows, and neighbouring threads write
// neighbouring words of 16 bytes; for bits, the threads of a warp exchange words before that. Words of a plane that is not
// aligned are made of two neighbouring words. Other typesizes, and destinations that are not aligned, go through shared
// memory byte by byte, and neighbouring threads write neighbouring words of 4 bytes.
// NumPy, per block, with n = nbytes // typesize and whole = source[: n * typesize]:
// 1: whole.reshape(typesize, n).T
// 2: np.packbits(np.unpackbits(whole, bitorder="little").reshape(typesize, 8, n).transpose(2, 0, 1), -1, "little")

#include "blosc_block.cuh"
#include "unshuffle_bytes.cuh"
#include "unshuffle_bits.cuh"
#include "unshuffle_tiles.cuh"

template <bool is_bits, u4 typesize>
__device__ inline bool unshuffle_quickly(Bytes<16>* shared, const Block& block, u4 tile, u4 n_tiles)
{
    if constexpr (is_bits) return unshuffle_bits<typesize>(shared, block, tile, n_tiles);
    else return unshuffle_bytes<typesize>(block, tile, n_tiles);
}

template <bool is_bits>
__device__ inline void unshuffle_block(Bytes<16>* shared, const Block& block, u4 tile, u4 n_tiles)
{
    bool is_done = false;
    switch (block.typesize) {
    case 1: is_done = unshuffle_quickly<is_bits, 1>(shared, block, tile, n_tiles); break;
    case 2: is_done = unshuffle_quickly<is_bits, 2>(shared, block, tile, n_tiles); break;
    case 4: is_done = unshuffle_quickly<is_bits, 4>(shared, block, tile, n_tiles); break;
    case 8: is_done = unshuffle_quickly<is_bits, 8>(shared, block, tile, n_tiles); break;
    case 16: is_done = unshuffle_quickly<is_bits, 16>(shared, block, tile, n_tiles); break;
    }
    if (!is_done) unshuffle_tiles<is_bits>(&shared->part[0], block, tile, n_tiles);
}

extern "C" __global__ void unshuffle(u8 table, u8 n, u8 tiles_per_block)
{
    __shared__ Bytes<16> shared[n_shared / 4];
    const u4 row = blockIdx.x / (u4)tiles_per_block, n_tiles = (u4)tiles_per_block, tile = blockIdx.x % n_tiles;
    const u8* const column = (const u8*)table + row;
    const u4 nbytes = (u4)column[2 * n], filter = (u4)column[4 * n], typesize = filter ? (u4)column[3 * n] : 1;
    const Block block = {(const u1*)column[0], (u1*)column[n], nbytes, typesize, nbytes / typesize};
    if (filter == 2) unshuffle_block<true>(shared, block, tile, n_tiles);
    else unshuffle_block<false>(shared, block, tile, n_tiles);
    if (tile != 0) return;
    for (u4 i = block.n * typesize + threadIdx.x; i < nbytes; i += n_threads) block.out[i] = block.in[i];
}
