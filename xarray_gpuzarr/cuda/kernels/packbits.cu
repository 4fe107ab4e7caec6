// Booleans of chunks out of bits.
//
// Grid: n * tiles_per_chunk blocks of 256 threads; a block unpacks 8192 booleans of one chunk. `table` has two columns of
// n words: address of the packed bytes, the first of which counts unused bits of the last; address of the booleans, both
// of any alignment. `flags` has one, zeros at first: 1 is written where that count is another one than expected.
// Memory: neighbouring threads read neighbouring bytes and write words of 8 bytes, or bytes where those are not aligned.
// NumPy: np.unpackbits(packed[1:], count=n_elements)

typedef unsigned char u1;
typedef unsigned int u4;
typedef unsigned long long u8;

__device__ inline u8 unpacked(u4 byte)
{
    u8 word = 0;
#pragma unroll
    for (u4 i = 0; i < 8; ++i) word |= (u8)(byte >> (7 - i) & 1) << 8 * i;
    return word;
}

extern "C" __global__ void packbits(u8 table, u8 n, u8 tiles_per_chunk, u8 n_elements, u8 flags)
{
    const u4 row = blockIdx.x / (u4)tiles_per_chunk, tile = blockIdx.x % (u4)tiles_per_chunk;
    const u8* const column = (const u8*)table + row;
    const u1* const packed = (const u1*)column[0];
    u1* const out = (u1*)column[n];
    if (tile == 0 && threadIdx.x == 0 && packed[0] != (8 - n_elements % 8) % 8) ((u8*)flags)[row] = 1;
#pragma unroll 1
    for (u4 item = 0; item < 4; ++item) {
        const u8 at = 8 * (u8)((tile * 4 + item) * blockDim.x + threadIdx.x);
        if (at >= n_elements) break;
        const u8 word = unpacked(packed[1 + at / 8]);
        if (at + 8 <= n_elements && (u8)(out + at) % 8 == 0) {
            *(u8*)(out + at) = word;
            continue;
        }
        for (u4 i = 0; i < 8 && at + i < n_elements; ++i) out[at + i] = (u1)(word >> 8 * i);
    }
}
