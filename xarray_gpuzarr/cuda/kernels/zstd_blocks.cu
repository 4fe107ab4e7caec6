// Check that chunks are zstd frames of the expected length, and that their blocks end where the chunks do, before a decoder
// that does not check this reads them.
//
// Grid: ceil(n / 32) blocks of 32 threads; a thread follows one frame. `table` has four columns of n words: source, its
// length, target, its length. If a frame is not sound, source and length become those of the frame at `spare`, and the
// word in `refused`, 0 at first, becomes 1.
// Memory: a thread reads up to 14 bytes of a header, and 3 bytes for each block of up to 128 KiB, one after another.
// Python: test_zstd_kernel.py checks it one field at a time. Reference: RFC 8878 section 3.1.1.

typedef unsigned char u1;
typedef unsigned int u4;
typedef unsigned long long u8;

constexpr u4 magic = 0xFD2FB528;
constexpr u4 most_nbytes = 128 * 1024;  // longest block that the format allows
constexpr u4 spare_nbytes = 10;  // length of the frame at `spare`: no frame that decodes to any byte is shorter
enum Kind { raw, repeated, compressed, reserved };

// Return the longest block of a frame with a window; 0 if the window is larger than libzstd ever allows.
__device__ inline u4 window_limit(u4 descriptor)
{
    const u4 exponent = descriptor >> 3;
    if (exponent > 21) return 0;
    const u8 window = (u8)(8 + (descriptor & 7)) << (7 + exponent);
    return window < most_nbytes ? (u4)window : most_nbytes;
}

// Return the number in n bytes, the lowest byte first.
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
    // Refused: a dictionary, a checksum of the content, a reserved bit that is set, or no content size.
    if (descriptor & 31 || !(flag | single)) return false;
    const u4 width = 1u << flag;
    u8 at = 6 - single + width;  // behind magic number, descriptor, window (unless `single`) and content size
    if (at > nbytes || number(frame + at - width, width) + (width == 2 ? 256 : 0) != expected) return false;
    u8 limit = expected < most_nbytes ? expected : most_nbytes;
    if (!single) limit = window_limit(frame[5]);
    u8 least = 0, n_compressed = 0;  // least: decoded bytes of the blocks that are not compressed
    // libzstd splits 128 KiB into at most 196 blocks. Frames with far more are refused, because they would take too long.
    for (u8 left = limit ? 64 + expected / 512 : 0; left > 0; --left) {
        if (at + 3 > nbytes) return false;
        const u4 header = frame[at] | (u4)frame[at + 1] << 8 | (u4)frame[at + 2] << 16;
        const u4 kind = header >> 1 & 3, size = header >> 3;
        // A compressed block has two headers of at least one byte each.
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
