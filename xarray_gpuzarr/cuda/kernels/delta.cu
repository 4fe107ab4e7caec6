// Undo a delta of integers: turn differences between neighbours into running sums.
//
// Grid: n * n_segments blocks of 256 threads; a block decodes one segment of a chunk. A segment has `length` elements; the
// last one has all that remain. `table` has two columns of n words: addresses of the differences and of the elements,
// aligned to them, which must not overlap. Sums wrap around. Compiled for FROM and TO, the bytes of a difference and of an
// element. Chunks of one segment take one launch, of the step `whole`. Chunks of several segments take three launches:
// `sums` adds up each segment, `offsets` adds up the sums of the segments before each, and `segments` writes the elements.
// Between the launches, the sum of a segment is kept in its own output, at the first multiple of 8 bytes.
// Memory: a thread reads and writes 8 or 16 neighbouring elements, in words of 16 bytes if these are aligned; the next
// thread takes the next elements. If there are several segments, differences are read twice.
// NumPy: np.cumsum(encoded, out=decoded)

#include "dtypes.cuh"

typedef Unsigned<TO == 8 ? 8 : 4>::type Sum;  // no bit of a sum depends on higher ones, so an element's bits suffice

enum Step { whole, sums, offsets, segments };

constexpr u4 n_threads = 256, n_lanes = 32, n_warps = n_threads / n_lanes;
constexpr u4 n_each = FROM == 8 || TO == 8 ? 8 : 16, n_tile = n_threads * n_each;

template <u4 nbytes> struct alignas(nbytes) Vector { u4 word[nbytes / 4]; };

// The `n_each` elements of a thread, of `nbytes` bytes each, in registers.
template <u4 nbytes> struct Elements {
    typedef typename Unsigned<nbytes>::type Element;
    static constexpr u4 n_words = n_each * nbytes / 4, width = n_words < 4 ? n_words : 4;
    typedef Vector<4 * width> Words;
    u4 word[n_words];

    // Return an element, or its lower bits if a Sum has no more.
    __device__ Sum get(u4 i) const
    {
        if constexpr (nbytes < 4) return word[i * nbytes / 4] >> i * nbytes % 4 * 8 & ((1u << 8 * nbytes % 32) - 1);
        else if constexpr (nbytes == 4 || sizeof(Sum) == 4) return word[i * nbytes / 4];
        else return word[2 * i] | (u8)word[2 * i + 1] << 32;
    }

    __device__ void set(u4 i, u8 value)  // only once, and only if the element was 0
    {
        if constexpr (nbytes == 8) word[2 * i + 1] = (u4)(value >> 32);
        word[i * nbytes / 4] |= (u4)(Element)value << i * nbytes % 4 * 8;
    }

    __device__ static bool is_aligned(u8 address) { return address % sizeof(Words) == 0; }

    // Load the elements from an address on: `count` of them at most, and zeros behind these.
    __device__ void load(u8 address, u4 count)
    {
        if (count >= n_each && is_aligned(address)) {
#pragma unroll
            for (u4 i = 0; i < n_words / width; ++i) {
                const Words words = ((const Words*)address)[i];
#pragma unroll
                for (u4 j = 0; j < width; ++j) word[i * width + j] = words.word[j];
            }
            return;
        }
#pragma unroll
        for (u4 i = 0; i < n_words; ++i) word[i] = 0;
#pragma unroll
        for (u4 i = 0; i < n_each; ++i)
            if (i < count) set(i, ((const Element*)address)[i]);
    }

    // Store the elements from an address on, `count` of them at most.
    __device__ void store(u8 address, u4 count) const
    {
        if (count >= n_each && is_aligned(address)) {
#pragma unroll
            for (u4 i = 0; i < n_words / width; ++i) {
                Words words;
#pragma unroll
                for (u4 j = 0; j < width; ++j) words.word[j] = word[i * width + j];
                ((Words*)address)[i] = words;
            }
            return;
        }
#pragma unroll
        for (u4 i = 0; i < n_each; ++i)
            if (i < count) ((Element*)address)[i] = (Element)get_all(i);
    }

    // Return all bits of an element.
    __device__ u8 get_all(u4 i) const
    {
        if constexpr (nbytes == 8) return word[2 * i] | (u8)word[2 * i + 1] << 32;
        else return get(i);
    }

    // Reverse the bytes of each element.
    __device__ void swap()
    {
        if constexpr (nbytes == 8)
#pragma unroll
            for (u4 i = 0; i < n_words; i += 2) {
                const u4 low = word[i];
                word[i] = __byte_perm(word[i + 1], 0, 0x0123);
                word[i + 1] = __byte_perm(low, 0, 0x0123);
            }
        else
#pragma unroll
            for (u4 i = 0; i < n_words; ++i) word[i] = __byte_perm(word[i], 0, nbytes == 2 ? 0x2301 : 0x0123);
    }

    // Set bytes that are not 0 to 1: adding 0x7f to the lower seven bits of a byte carries into its highest bit.
    __device__ void truth()
    {
#pragma unroll
        for (u4 i = 0; i < n_words; ++i)
            word[i] = (((word[i] & 0x7f7f7f7f) + 0x7f7f7f7f) | word[i]) >> 7 & 0x01010101;
    }
};

// The differences of a segment, of which a tile is read at a time.
struct Differences {
    u8 address;
    u4 n;
    DType dtype;
    Sum sign;  // sign bit of a difference if it must be extended to the bits of a Sum; otherwise 0

    __device__ Differences(u8 address, u4 n, const DType& dtype) : address(address), n(n), dtype(dtype), sign(0)
    {
        if (FROM < sizeof(Sum) && dtype.kind == 'i') sign = (Sum)1 << (8 * FROM - 1) % (8 * sizeof(Sum));
    }

    // Load the differences of this thread.
    __device__ Elements<FROM> load(u4 tile) const
    {
        const u4 first = tile * n_tile + threadIdx.x * n_each;
        Elements<FROM> elements;
        elements.load(address + (u8)first * FROM, first < n ? n - first : 0);
        return elements;
    }

    __device__ void decode(Elements<FROM>& elements) const
    {
        if (FROM > 1 && dtype.is_swapped) elements.swap();
        if (FROM == 1 && dtype.kind == 'b') elements.truth();
    }

    __device__ Sum get(const Elements<FROM>& elements, u4 i) const { return (elements.get(i) ^ sign) - sign; }
};

// Computes sums over the threads of a block.
struct Scan {
    Sum steps[n_warps][2][2 * n_lanes];  // the sums of a warp in odd and in even steps, behind as many zeros
    Sum totals[2][n_warps];

    // Write the zeros. Each thread reads only what its own warp writes.
    __device__ void start()
    {
        const u4 warp = threadIdx.x / n_lanes, lane = threadIdx.x % n_lanes;
        steps[warp][0][lane] = steps[warp][1][lane] = 0;
    }

    // Return the sum of `mine` over all threads before this one, and set `total` to the sum over all threads. `turn` must
    // alternate between 0 and 1: slower threads may still read the totals of the previous call.
    __device__ Sum before(Sum mine, u4 turn, Sum& total)
    {
        const u4 warp = threadIdx.x / n_lanes, lane = threadIdx.x % n_lanes;
        Sum sum = mine;
#pragma unroll
        for (u4 i = 0; i < 5; ++i) {
            Sum* const step = steps[warp][i % 2] + n_lanes + lane;
            *step = sum;
            __syncwarp();
            sum += step[-(1 << i)];
        }
        if (lane == n_lanes - 1) totals[turn][warp] = sum;
        __syncthreads();
        Sum before = sum - mine;
        total = 0;
#pragma unroll
        for (u4 i = 0; i < n_warps; ++i) {
            if (i == warp) before += total;
            total += totals[turn][i];
        }
        return before;
    }
};

// Write the sum of a segment to `result`.
__device__ inline void sum_up(Scan& scan, const Differences& differences, u8* result)
{
    Sum mine = 0, total;
    for (u4 tile = 0; tile * n_tile < differences.n; ++tile) {
        Elements<FROM> elements = differences.load(tile);
        differences.decode(elements);
#pragma unroll
        for (u4 i = 0; i < n_each; ++i) mine += differences.get(elements, i);
    }
    scan.before(mine, 0, total);
    if (threadIdx.x == 0) *result = total;
}

// Replace the sum of each of `n` segments by the sum of all segments before it. The outputs of segments begin `stride` bytes
// apart, from `first` on; a sum lies at the first multiple of 8 in the output.
__device__ inline void sum_up_segments(Scan& scan, u8 first, u8 stride, u4 n)
{
    Sum done = 0;
    for (u4 begin = 0, turn = 0; begin < n; begin += n_threads, turn ^= 1) {
        const u4 segment = begin + threadIdx.x;
        u8* const slot = (u8*)((first + segment * stride + 7) & ~7ull);
        Sum total;
        const Sum before = scan.before(segment < n ? (Sum)*slot : 0, turn, total);
        if (segment < n) *slot = done + before;
        done += total;
    }
}

// Write the elements of a segment; `done` is the sum of all segments before it.
__device__ inline void write(Scan& scan, const Differences& differences, u8 decoded, const DType& to, Sum done)
{
    Elements<FROM> next = differences.load(0);
    for (u4 tile = 0; tile * n_tile < differences.n; ++tile) {
        Elements<FROM> elements = next;
        if ((tile + 1) * n_tile < differences.n) next = differences.load(tile + 1);
        differences.decode(elements);
        Sum sum[n_each], mine = 0, total;
#pragma unroll
        for (u4 i = 0; i < n_each; ++i) sum[i] = mine += differences.get(elements, i);
        const Sum before = done + scan.before(mine, tile % 2, total);
        Elements<TO> results = {};
#pragma unroll
        for (u4 i = 0; i < n_each; ++i) results.set(i, before + sum[i]);
        if (TO > 1 && to.is_swapped) results.swap();
        const u4 first = tile * n_tile + threadIdx.x * n_each;
        results.store(decoded + (u8)first * TO, first < differences.n ? differences.n - first : 0);
        done += total;
    }
}

extern "C" __global__ void delta(u8 table, u8 n, u8 n_elements, u8 encoded_dtype, u8 decoded_dtype, u8 step, u8 n_segments,
                                 u8 length)
{
    __shared__ Scan scan;
    scan.start();
    const u8 per_chunk = step == offsets ? 1 : n_segments, segment = blockIdx.x % per_chunk, first = segment * length;
    const u8* const column = (const u8*)table + blockIdx.x / per_chunk;
    const u4 count = (u4)(segment + 1 == n_segments ? n_elements - first : length);
    const Differences differences(column[0] + first * FROM, count, dtype_of(encoded_dtype));
    const u8 decoded = column[n] + first * TO;
    u8* const slot = (u8*)((decoded + 7) & ~7ull);
    if (step == sums) sum_up(scan, differences, slot);
    else if (step == offsets) sum_up_segments(scan, decoded, length * TO, (u4)n_segments);
    else write(scan, differences, decoded, dtype_of(decoded_dtype), step == segments ? (Sum)*slot : 0);
}
