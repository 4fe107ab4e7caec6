// Unpack the booleans of chunks from bits.
//
// Grid: n * tiles_per_chunk blocks of 256 threads; a block unpacks 8192 booleans of one chunk. `table` has two columns of
// n words: address of the packed bytes, and address of the booleans, both of any alignment. The first packed byte is the
// number of unused bits in the last one. `flags` has one column, zeros at first: 1 is written where that number is wrong.
// Memory: neighbouring threads read neighbouring bytes and write aligned words of 8 bytes, four words at a time.
// NumPy: np.unpackbits(packed[1:], count=n_elements)

typedef unsigned char u1;
typedef unsigned int u4;
typedef unsigned long long u8;

constexpr u4 n_threads = 256, n_each = 4, n_per_tile = 8192;

// Return the lower four bits as four bytes. Bit 3 goes to the first byte; the factor shifts bits 0, 1 and 2 by 24, 15 and 6,
// to the fourth, third and second byte.
__device__ inline u4 spread(u4 bits) { return (bits * 0x01008040u | bits >> 3) & 0x01010101u; }

extern "C" __global__ void packbits(u8 table, u8 n, u8 tiles_per_chunk, u8 n_elements, u8 flags)
{
    const u4 row = blockIdx.x / (u4)tiles_per_chunk, tile = blockIdx.x % (u4)tiles_per_chunk;
    const u8* const column = (const u8*)table + row;
    const u8 first = (u8)tile * n_per_tile, rest = n_elements - first;
    const u1* const packed = (const u1*)column[0] + 1 + first / 8;
    u1* const out = (u1*)column[n] + first;
    if (tile == 0 && threadIdx.x == 0 && packed[-1] != (8 - n_elements % 8) % 8) ((u8*)flags)[row] = 1;

    const u4 n_here = rest < n_per_tile ? (u4)rest : n_per_tile;
    const u4 before = (u4)(0 - (u8)out) & 7, head = before < n_here ? before : n_here;  // head: before whole words
    const u4 n_words = (n_here - head) / 8, tail = head + 8 * n_words, last = (n_here - 1) / 8;

    const u4 at = threadIdx.x < 8 ? threadIdx.x : tail + threadIdx.x - 8;
    if (threadIdx.x < 16 && at < (threadIdx.x < 8 ? head : n_here)) out[at] = (u1)(packed[at / 8] >> (7 - at % 8) & 1);

    u4 pair[n_each];  // the two bytes that hold the bits of a word of results, which may begin inside a byte
#pragma unroll
    for (u4 i = 0; i < n_each; ++i) {  // behind the last byte, the last byte is loaded again
        const u4 word = threadIdx.x + i * n_threads;
        pair[i] = (u4)packed[word < last ? word : last] << 8 | packed[word + 1 < last ? word + 1 : last];
    }
#pragma unroll
    for (u4 i = 0; i < n_each; ++i) {
        const u4 word = threadIdx.x + i * n_threads, bits = pair[i] >> (8 - head) & 0xff;
        if (word < n_words) *(u8*)(out + head + 8 * word) = (u8)spread(bits & 15) << 32 | spread(bits >> 4);
    }
}
