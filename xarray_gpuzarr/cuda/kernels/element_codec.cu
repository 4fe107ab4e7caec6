// Undo a codec of elements: turn encoded elements into decoded ones.
//
// Compiled for two types, ENCODED and DECODED, and a RULE.
//
// Grid: n * tiles_per_chunk blocks of 256 threads; a block decodes 4096 elements of one chunk. `table` has two columns of
// n words: addresses of the encoded and of the decoded elements, aligned to them. `flags` has one column, zeros at
// first: 1 is written for a chunk with an element that has no decoded value, or one that differs between computers.
// Memory: neighbouring threads read and write neighbouring elements, four loads before four stores.
// NumPy, by rule:
// astype: encoded.astype(decoded)
// scaled: (encoded / scale + offset).astype(decoded), computed in the dtype of `encoded` if it is floating, otherwise in f8
// scaled_integer: encoded // scale + offset; flagged unless scale divides it and the dtype holds the sum; int64 wraps around
// cast_value: the mapped value if there is one, otherwise rounded and converted; flagged unless the dtype holds the result

#include "dtypes.cuh"
#include "order.cuh"

enum Rule { astype, scaled, scaled_integer, cast_value };
enum Rounding { nearest_even, towards_zero, towards_positive, towards_negative, nearest_away };

struct Codec {  // fields of `filters.ElementCodec.words`
    u8 encoded_swap_nbytes, decoded_swap_nbytes, rounding;
    u8 scale, offset;  // numbers of `ElementCodec.arithmetic_dtype`
    u8 n_mapped;
    // Followed by pairs of an encoded integer and its decoded value.
};

// Convert an element as NumPy does. Return false if the result is undefined, or differs between computers.
__device__ inline bool convert(const DType& from, u8 word, const DType& to, u8& result)
{
    if (is_float(to)) {
        result = as_floating(from, word, to);
    } else if (!is_float(from)) {
        result = to.kind == 'b' ? word != 0 : word;
    } else if (to.kind == 'b') {
        result = word << (65 - 8 * from.nbytes) != 0;  // without the sign bit, so that -0 is false
    } else {
        const f8 value = trunc(floating(from, word));
        if (!holds(to, value)) return false;
        result = to.kind == 'i' ? (u8)(i8)value : (u8)value;
    }
    return true;
}

template <class F, class Bits> __device__ inline u8 scaled_as(const DType& from, u8 word, const Codec& codec)
{
    const F scale = bits<F>((Bits)codec.scale), offset = bits<F>((Bits)codec.offset);
    return bits<Bits>(sum(quotient(number<F>(from, word), scale), offset));
}

__device__ inline bool decode_scaled(const DType& from, u8 word, const DType& to, const Codec& codec, u8& result)
{
    const DType inner = {is_float(from) ? from.nbytes : 8, 'f', 0};
    u8 value;
    if (inner.nbytes == 2) value = scaled_as<f2, u2>(from, word, codec);
    else if (inner.nbytes == 4) value = scaled_as<f4, u4>(from, word, codec);
    else value = scaled_as<f8, u8>(from, word, codec);
    return convert(inner, value, to, result);
}

// Whether `scale` divides `word`; sets `quotient`. U and S are the unsigned and the signed type that is divided in: that of
// 4 bytes for elements of up to 4 bytes.
template <class U, class S>
__device__ inline bool divided(const DType& dtype, u8 word, u8 scale, u8& quotient)
{
    if (dtype.kind == 'u') {
        quotient = (U)word / (U)scale;
        return (U)quotient * (U)scale == (U)word;
    }
    quotient = 0 - word;  // the quotient for scale -1: processors may trap if the lowest number is divided by -1
    if ((S)scale == -1) return true;
    quotient = (u8)(i8)((S)word / (S)scale);
    return (U)quotient * (U)scale == (U)word;
}

// Wrap around as NumPy does for int64; for other dtypes, return false unless the dtype holds the sum.
__device__ inline bool decode_integer(const DType& dtype, u8 word, const Codec& codec, u8& result)
{
    u8 quotient;
    const bool divides = dtype.nbytes == 8 ? divided<u8, i8>(dtype, word, codec.scale, quotient)
                                           : divided<u4, i4>(dtype, word, codec.scale, quotient);
    result = quotient + codec.offset;
    if (!divides) return false;
    if (dtype.kind == 'u') return result >= codec.offset && holds(dtype, result, false);
    return dtype.nbytes == 8 || holds(dtype, result, true);
}

__device__ inline f8 rounded(f8 value, u8 rounding)
{
    switch (rounding) {
    case towards_zero: return trunc(value);
    case towards_positive: return ceil(value);
    case towards_negative: return floor(value);
    case nearest_away: return round(value);
    default: return rint(value);
    }
}

// Return false if the dtype `to` does not hold the result.
__device__ inline bool decode_value(const DType& from, u8 word, const DType& to, const Codec& codec, u8& result)
{
    const u8* const mapped = (const u8*)(&codec + 1);
#pragma unroll 1
    for (u4 i = 0; i < (u4)codec.n_mapped; ++i)
        if (mapped[2 * i] == word) {
            result = mapped[2 * i + 1];
            return true;
        }
    if (!is_float(from) && !is_float(to)) {
        result = word;
        return holds(to, word, from.kind == 'i');
    }
    if (!is_float(to)) {
        const f8 value = rounded(floating(from, word), codec.rounding);
        return convert(DType{8, 'f', 0}, bits<u8>(value), to, result);
    }
    result = as_floating(from, word, to);
    // A finite number must not become infinite. x - x is 0 for finite numbers, otherwise NaN.
    const bool is_finite = !is_float(from) || floating(from, word) - floating(from, word) == 0;
    return !is_finite || floating(to, result) - floating(to, result) == 0;
}

template <class T> struct KindOf { static constexpr u1 kind = (T)-1 < (T)0 ? 'i' : 'u'; };
template <> struct KindOf<b1> { static constexpr u1 kind = 'b'; };
template <> struct KindOf<f2> { static constexpr u1 kind = 'f'; };
template <> struct KindOf<f4> { static constexpr u1 kind = 'f'; };
template <> struct KindOf<f8> { static constexpr u1 kind = 'f'; };

typedef Unsigned<sizeof(ENCODED)>::type EncodedBits;
typedef Unsigned<sizeof(DECODED)>::type DecodedBits;

constexpr u4 n_threads = 256, n_each = 4, n_per_tile = 4096;

__device__ inline bool decode(EncodedBits encoded, const Codec& codec, u8& result)
{
    constexpr DType from = {sizeof(ENCODED), KindOf<ENCODED>::kind, 0}, to = {sizeof(DECODED), KindOf<DECODED>::kind, 0};
    constexpr u4 above = 64 - 8 * sizeof(ENCODED);  // number of bits of a word above the element
    u8 word = encoded;
    if (from.kind == 'b') word = encoded != 0;
    if (from.kind == 'i') word = (u8)((i8)(word << above) >> above);
    switch (RULE) {
    case scaled: return decode_scaled(from, word, to, codec, result);
    case scaled_integer: return decode_integer(from, word, codec, result);
    case cast_value: return decode_value(from, word, to, codec, result);
    default: return convert(from, word, to, result);
    }
}

extern "C" __global__ void element_codec(u8 table, u8 n, u8 tiles_per_chunk, u8 n_elements, u8 codec_address, u8 flags)
{
    const u4 row = blockIdx.x / (u4)tiles_per_chunk, tile = blockIdx.x % (u4)tiles_per_chunk;
    const u8* const column = (const u8*)table + row;
    const EncodedBits* const encoded = (const EncodedBits*)column[0];
    DecodedBits* const decoded = (DecodedBits*)column[n];
    const Codec& codec = *(const Codec*)codec_address;
    const Order from = order_of((u4)codec.encoded_swap_nbytes), to = order_of((u4)codec.decoded_swap_nbytes);
    const u4 end = n_elements - (u8)tile * n_per_tile < n_per_tile ? (u4)n_elements : (tile + 1) * n_per_tile;
    bool all_decoded = true;
#pragma unroll 1
    for (u4 first = tile * n_per_tile + threadIdx.x; first < end; first += n_each * n_threads) {
        EncodedBits loaded[n_each];
#pragma unroll
        for (u4 i = 0; i < n_each; ++i) {  // behind the last element, the last one is loaded again
            const u4 at = first + i * n_threads;
            loaded[i] = encoded[at < end ? at : end - 1];
        }
#pragma unroll
        for (u4 i = 0; i < n_each; ++i) {
            u8 result = 0;
            all_decoded &= decode(ordered(loaded[i], from), codec, result);
            if (first + i * n_threads < end) decoded[first + i * n_threads] = ordered((DecodedBits)result, to);
        }
    }
    if (!all_decoded) ((u8*)flags)[row] = 1;
}
