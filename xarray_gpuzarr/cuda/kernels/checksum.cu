// Compute checksums of messages, which are runs of bytes in device memory.
//
// Compiled for one KIND: crc32, crc32c or adler32. Apart from a constant, each is linear in the bytes of the message,
// so threads may take any bytes, weighted by the number of bytes that follow. Tiles are counted from the end of the
// message, which is padded with zeros to a multiple of 16. Zeros in front of a message add nothing; the effect of those
// behind it is removed from the result.
//
// Grid: n * tiles_per_message blocks of 256 threads; a block adds 64 KiB of one message to the message's result. `table`
// has two columns of n words: address, and length up to 2^32 - 16. `results` has one column, zeros at first;
// `final_checksums` in checksum.py makes the checksums from it.
// Memory: neighbouring threads read neighbouring words of 16 bytes. Words that cross an end of a message are read byte by
// byte.
// Python, per message: zlib.crc32(message), google_crc32c.value(message), zlib.adler32(message)
// References: RFC 1952 section 8 (CRC-32), RFC 3720 section 12.1 (CRC-32C), RFC 1950 section 8.2 (Adler-32)

typedef long long i8;
typedef unsigned char u1;
typedef unsigned int u4;
typedef unsigned long long u8;
struct alignas(16) Word { u4 part[4]; };

#define UNROLL _Pragma("unroll")

constexpr u4 log_stride = 12, stride = 1u << log_stride, tile_nbytes = 65536;  // a stride is one word of each thread

// A KIND sums up the words of one thread, one in each stride (`add`), adds that to the total of its block (`join`), and adds
// this total to the message's result (`put`). `behind` is the number of bytes that follow: in `join`, those after the
// thread's word in a stride; in `put`, those after the tile in the padded message. `put_constant` adds what depends on the
// length alone.

// ---- CRC: a polynomial over GF(2) modulo another polynomial; bit 31 is the coefficient of x^0

template <u4 polynomial> struct Zeros {
    u4 after[32][32];  // [k][i]: the CRC with only bit i set, after 2^k more zero bytes

    __device__ constexpr Zeros() : after()
    {
        for (int i = 0; i < 32; ++i) {
            u4 crc = 1u << i;
            for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? polynomial : 0);
            after[0][i] = crc;
        }
        for (int k = 1; k < 32; ++k)
            for (int i = 0; i < 32; ++i) after[k][i] = followed(after[k - 1][i], k - 1);
    }

    // Return a CRC after 2^k more zero bytes.
    __device__ constexpr u4 followed(u4 crc, int k) const
    {
        u4 result = 0;
        UNROLL for (int i = 0; i < 32; ++i) if (crc & 1u << i) result ^= after[k][i];
        return result;
    }
};

template <u4 polynomial> __constant__ constexpr Zeros<polynomial> zeros;

template <u4 polynomial> struct Crc {
    u4 lane[4] = {0, 0, 0, 0};  // one CRC for each of the four parts of a word, without the factor x^32

    // Return a CRC after `nbytes` more zero bytes.
    static __device__ u4 followed(u4 crc, u4 nbytes)
    {
#pragma unroll 1
        for (int k = 0; nbytes; ++k, nbytes >>= 1)
            if (nbytes & 1) crc = zeros<polynomial>.followed(crc, k);
        return crc;
    }

    __device__ void add(const Word& word)
    {
        UNROLL for (int i = 0; i < 4; ++i) lane[i] = zeros<polynomial>.followed(lane[i], log_stride) ^ word.part[i];
    }

    __device__ void join(u4* total, u4 behind) const
    {
        u4 crc = 0;
        UNROLL for (int i = 0; i < 4; ++i) crc = zeros<polynomial>.followed(crc ^ lane[i], 2);  // 4 bytes more
        atomicXor(total, followed(crc, behind));
    }

    static __device__ void put(u8* result, const u4* total, u4 behind, u4 padding)
    {
        u4 crc = followed(*total, behind);
        // Take the zero bits of the padding away again, one at a time.
#pragma unroll 1
        for (u4 bit = 0; bit < 8 * padding; ++bit) crc = crc << 1 ^ (crc >> 31 ? polynomial << 1 | 1 : 0);
        atomicXor(result, (u8)crc);
    }

    static __device__ void put_constant(u8* result, u4 nbytes) { atomicXor(result, (u8)(followed(~0u, nbytes) ^ ~0u)); }
};

typedef Crc<0xedb88320u> crc32;
typedef Crc<0x82f63b78u> crc32c;

// ---- Adler-32: the sum of all bytes, and the sum over all bytes of the sum up to that byte

struct adler32 {
    static constexpr u4 modulus = 65521;
    // strides: sum over all strides so far of what `a` was before the stride. `b` counts the 16 bytes of each stride that
    // this thread reads; the others of the stride are added in `join`. In a tile, all sums fit into 32 bits.
    u4 a = 0, b = 0, strides = 0;

    __device__ void add(const Word& word)
    {
        strides += a;
        UNROLL for (int i = 0; i < 16; ++i) b += a += word.part[i / 4] >> i % 4 * 8 & 0xff;
    }

    __device__ void join(u4* total, u4 behind) const
    {
        atomicAdd(total, a);
        atomicAdd(total + 1, (b + strides * (stride - 16) + a * behind) % modulus);
    }

    static __device__ void put(u8* result, const u4* total, u4 behind, u4 padding)
    {
        // The padding is taken away from `behind`; `modulus` keeps the difference positive.
        const u8 a = total[0] % modulus, b = total[1] + a * ((u8)behind + modulus - padding);
        atomicAdd(result, b % modulus << 32 | a);
    }

    static __device__ void put_constant(u8* result, u4 nbytes) { atomicAdd(result, (u8)(nbytes % modulus) << 32); }
};

// ---- all kinds

// Return 16 bytes from position `at` of a message on; bytes outside the message are zero.
__device__ inline Word word_at(const u1* message, i8 nbytes, i8 at)
{
    if (at >= 0 && at + 16 <= nbytes) return *(const Word*)(message + at);
    Word word = {};
    UNROLL for (int i = 0; i < 16; ++i)
        if (at + i >= 0 && at + i < nbytes) word.part[i / 4] |= (u4)message[at + i] << i % 4 * 8;
    return word;
}

extern "C" __global__ void checksum(u8 table, u8 n, u8 tiles_per_message, u8 results)
{
    const u4 row = blockIdx.x / (u4)tiles_per_message, tile = blockIdx.x % (u4)tiles_per_message;
    const u8* const column = (const u8*)table + row;
    const u1* const message = (const u1*)column[0];
    const i8 nbytes = (i8)column[n], behind = (i8)tile * tile_nbytes;
    const u4 padding = (u4)(0 - column[0] - column[n]) & 15;
    const i8 end = nbytes + padding - behind;
    if (end <= 0) return;

    __shared__ u4 total[2];
    if (threadIdx.x == 0) total[0] = total[1] = 0;
    __syncthreads();

    KIND sum;
    const i8 n_strides = end < tile_nbytes ? (end + stride - 1) / stride : tile_nbytes / stride;
    const u4 thread_behind = 16 * (blockDim.x - 1 - threadIdx.x);
#pragma unroll 1
    for (i8 i = n_strides; i > 0; --i) sum.add(word_at(message, nbytes, end - i * stride + 16 * threadIdx.x));
    sum.join(total, thread_behind);
    __syncthreads();

    if (threadIdx.x != blockDim.x - 1) return;
    u8* const result = (u8*)results + row;
    KIND::put(result, total, (u4)behind, padding);
    if (tile == 0) KIND::put_constant(result, (u4)nbytes);
}
