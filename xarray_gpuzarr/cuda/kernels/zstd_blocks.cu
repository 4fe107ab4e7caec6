// Whether chunks are zstd frames of the expected length whose blocks end where they do, before a decoder that trusts
// them is let in.
//
// Grid: ceil(n / 32) blocks of 32 threads; a thread follows one frame. `table` has four columns of n words: source, its
// length, target, its length. Where a frame is not sound, source and length become those of the frame at `spare`, and
// the word in `refused` (zeros) becomes 1.
// Memory: up to 14 bytes of a header, 3 scattered bytes for each block of up to 128 KiB, one after the other.
// Python: test_zstd_kernel.py has it one field at a time. RFC 8878 section 3.1.1.

typedef unsigned char u1;
typedef unsigned int u4;
typedef unsigned long long u8;

constexpr u4 magic = 0xFD2FB528;
constexpr u4 most_nbytes = 128 * 1024;  // of any block
constexpr u4 spare_nbytes = 10;  // fewer hold no frame of a byte
enum Kind { raw, repeated, compressed, reserved };

// Longest block of a frame with a window; 0 where the window is more than libzstd ever allows.
__device__ inline u4 window_limit(u4 descriptor)
{
    const u4 exponent = descriptor >> 3;
    if (exponent > 21) return 0;
    const u8 window = (u8)(8 + (descriptor & 7)) << (7 + exponent);
    return window < most_nbytes ? (u4)window : most_nbytes;
}

// The number in n bytes, the lowest first.
__device__ inline u8 number(const u1* bytes, u4 n)
{
    u8 value = 0;
    while (n > 0) value = value << 8 | bytes[--n];
    return value;
}

__device__ inline bool sound(const u1* frame, u8 nbytes, u8 expected)
{
    if (!expected || nbytes < spare_nbytes || number(frame, 4) != magic) return false;
    const u4 descriptor = frame[4], single = descriptor >> 5 & 1, flag = descriptor >> 6;
    // A dictionary, a checksum of the content, a bit that should be 0; or no length.
    if (descriptor & 31 || !(flag | single)) return false;
    const u4 width = 1u << flag;
    u8 at = 6 - single + width;
    if (at > nbytes || number(frame + at - width, width) + (width == 2 ? 256 : 0) != expected) return false;
    u8 limit = expected < most_nbytes ? expected : most_nbytes;
    if (!single) limit = window_limit(frame[5]);
    u8 least = 0, n_compressed = 0;
    // libzstd cuts 128 KiB into at most 196 blocks; far more would only be a way to make this slow.
    for (u8 left = limit ? 64 + expected / 512 : 0; left > 0; --left) {
        if (at + 3 > nbytes) return false;
        const u4 header = frame[at] | (u4)frame[at + 1] << 8 | (u4)frame[at + 2] << 16;
        const u4 kind = header >> 1 & 3, size = header >> 3;
        // A compressed block has two headers of at least a byte each.
        if (kind == reserved || size > limit || (kind == compressed && size < 2)) return false;
        at += 3 + (kind == repeated ? 1 : size);
        if (kind == compressed) ++n_compressed;
        else least += size;
        if (header & 1) return at == nbytes && least <= expected && expected <= least + n_compressed * limit;
    }
    return false;
}

extern "C" __global__ void zstd_blocks(u8 table, u8 n, u8 spare, u8 refused)
{
    const u8 row = (u8)blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= n) return;
    u8* const column = (u8*)table + row;
    if (sound((const u1*)column[0], column[n], column[3 * n])) return;
    column[0] = spare;
    column[n] = spare_nbytes;
    ((u8*)refused)[row] = 1;
}
