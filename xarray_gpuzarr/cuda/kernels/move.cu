// Copy runs of bytes from one place in device memory to another.
//
// Grid: n * tiles_per_run blocks of 256 threads; a block moves 64 KiB of one run. `table` has three columns of n words:
// source, destination, length.
// Memory: words of 16 bytes if source and destination are equal modulo 16; otherwise stores of aligned words of 8 bytes,
// each made of the two aligned words that hold its bytes.
// NumPy, per run: destination[:nbytes] = source[:nbytes]

typedef long long i8;
typedef unsigned char u1;
typedef unsigned int u4;
typedef unsigned long long u8;
struct alignas(16) u16 { u8 low, high; };

__device__ inline void move_bytes(u8 src, u8 dst, i8 from, i8 end)
{
    for (i8 at = from + threadIdx.x; at < end; at += blockDim.x) ((u1*)dst)[at] = ((const u1*)src)[at];
}

template <class Word> __device__ inline void move_words(const Word* __restrict__ src, Word* __restrict__ dst, u4 n)
{
#pragma unroll 4
    for (u4 i = threadIdx.x; i < n; i += blockDim.x) dst[i] = src[i];
}

// Copy from a source that is not aligned. `src` is the aligned address `shift` bytes, 1 to 7, before its first byte.
__device__ inline void move_shifted(const u8* __restrict__ src, u8* __restrict__ dst, u4 n, u4 shift)
{
#pragma unroll 4
    for (u4 i = threadIdx.x; i < n; i += blockDim.x) dst[i] = src[i] >> 8 * shift | src[i + 1] << (64 - 8 * shift);
}

extern "C" __global__ void move(u8 table, u8 n, u8 tiles_per_run)
{
    const i8 tile_nbytes = 65536;
    const u4 run = blockIdx.x / (u4)tiles_per_run;
    const u8* const column = (const u8*)table + run;
    const u8 src = column[0], dst = column[n];
    const i8 nbytes = (i8)column[2 * n], first = (blockIdx.x % (u4)tiles_per_run) * tile_nbytes;
    if (first >= nbytes) return;
    const i8 end = first + tile_nbytes < nbytes ? first + tile_nbytes : nbytes;

    const u4 shift = (u4)(src - dst) & 7;
    const i8 width = ((src - dst) & 15) == 0 ? 16 : 8;
    // The words that shifted words are made of must lie inside the run, too.
    const i8 lowest = first > shift ? first : shift;
    const i8 highest = shift && nbytes - (8 - (i8)shift) < end ? nbytes - (8 - (i8)shift) : end;
    const i8 from = lowest + (i8)((0 - dst - lowest) & (u8)(width - 1));
    const i8 n_words = from < highest ? (highest - from) / width : 0;
    const i8 until = from + n_words * width;

    if (n_words == 0) return move_bytes(src, dst, first, end);
    move_bytes(src, dst, first, from);
    if (width == 16) move_words((const u16*)(src + from), (u16*)(dst + from), (u4)n_words);
    else if (shift == 0) move_words((const u8*)(src + from), (u8*)(dst + from), (u4)n_words);
    else move_shifted((const u8*)(src + from - shift), (u8*)(dst + from), (u4)n_words, shift);
    move_bytes(src, dst, until, end);
}
