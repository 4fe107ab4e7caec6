// A Blosc block; loads of its bytes from any address; and its first and last elements, one byte at a time.

typedef unsigned char u1;
typedef unsigned short u2;
typedef unsigned int u4;
typedef unsigned long long u8;

constexpr u4 n_threads = 256, n_lanes = 32, n_warps = n_threads / n_lanes;
constexpr u4 n_shared = 8192;  // number of words of 4 bytes in shared memory

struct Block {
    const u1* in;
    u1* out;
    u4 nbytes, typesize, n;  // n: number of whole elements
};

// Return the 32 bits from bit `shift` of `low` on, the last ones from `high`; shift < 32.
__device__ inline u4 joined(u4 low, u4 high, u4 shift) { return (u4)(((u8)high << 32 | low) >> shift); }

template <u4 n> struct alignas(n < 4 ? 4 : n) Bytes { u4 part[n < 4 ? 1 : n / 4]; };

template <u4 n> __device__ inline Bytes<n> load(const u1* from)
{
    if constexpr (n == 1) return Bytes<1>{{*from}};
    else if constexpr (n == 2) return Bytes<2>{{*(const u2*)from}};
    else return *(const Bytes<n>*)from;
}

// Load from any address. If n >= 4, up to 3 bytes before and up to 4 bytes behind are read, too.
template <u4 n> __device__ inline Bytes<n> load_anywhere(const u1* from)
{
    if constexpr (n == 1) return load<1>(from);
    else if constexpr (n == 2) return Bytes<2>{{from[0] | (u4)from[1] << 8}};
    else {
        const u4 before = (u4)(u8)from & 3;
        const u4* const word = (const u4*)(from - before);
        Bytes<n> bytes;
        u4 low = word[0];
#pragma unroll
        for (u4 i = 0; i < n / 4; ++i) {
            const u4 high = word[i + 1];
            bytes.part[i] = joined(low, high, 8 * before);
            low = high;
        }
        return bytes;
    }
}

// Return byte `k` of an unshuffled element.
template <bool is_bits> __device__ inline u1 byte_of(const Block& block, u4 element, u4 k)
{
    if constexpr (!is_bits) return block.in[k * block.n + element];
    u4 byte = 0;
    for (u4 i = 0; i < 8; ++i)
        byte |= (block.in[(8 * k + i) * (block.n / 8) + element / 8] >> element % 8 & 1u) << i;
    return (u1)byte;
}

// Write the elements before `first` and those from `last` on, with one block of threads.
template <bool is_bits> __device__ inline void unshuffle_ends(const Block& block, u4 first, u4 last)
{
    const u4 n_before = first * block.typesize, n = n_before + (block.n - last) * block.typesize;
#pragma unroll 1
    for (u4 i = threadIdx.x; i < n; i += n_threads) {
        const u4 at = i < n_before ? i : i - n_before + last * block.typesize;  // position in the output, in bytes
        block.out[at] = byte_of<is_bits>(block, at / block.typesize, at % block.typesize);
    }
}
