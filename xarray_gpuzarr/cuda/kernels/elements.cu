// Elements of chunks from what a codec of elements stored to what it was given.
//
// Grid: n * tiles_per_chunk blocks of 256 threads; a block decodes 4096 elements of one chunk. `table` has two columns of
// n words: addresses of the encoded and of the decoded elements, aligned to them. `flags` has one, zeros at first: 1 is
// written where an element has no decoded value, or one that differs between computers.
// Memory: neighbouring threads read and write neighbouring elements.
// NumPy, by rule:
// astype: encoded.astype(decoded)
// scaled: (encoded / scale + offset).astype(decoded), divided as floating numbers: of 8 bytes if `encoded` has none
// scaled_integer: encoded // scale + offset; flagged unless scale divides and the dtype holds the sum; int64 wraps around
// cast_value: the scalar map, else rounded as asked and converted; flagged unless the dtype holds the result

#include "dtypes.cuh"

enum Rule { astype, scaled, scaled_integer, cast_value };
enum Rounding { nearest_even, towards_zero, towards_positive, towards_negative, nearest_away };

struct Codec {  // fields of `filters.Elements.words`
    u8 encoded, decoded, rule, rounding;
    u8 scale, offset;  // of the floating dtype that is computed in, or integers
    u8 n_mapped, unused;
    // Behind them: pairs of integers and of what they decode to.
};

// Returns false where an element has no value that is the same everywhere.
__device__ inline bool convert(const DType& from, u8 word, const DType& to, u8& result)
{
    if (is_float(to)) {
        result = as_floating(from, word, to);
    } else if (!is_float(from)) {
        result = to.kind == 'b' ? word != 0 : word;
    } else if (to.kind == 'b') {
        result = word << (65 - 8 * from.nbytes) != 0;
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

__device__ inline bool decode_integer(const DType& dtype, u8 word, const Codec& codec, u8& result)
{
    if (dtype.kind == 'u') {
        if (word % codec.scale) return false;
        result = word / codec.scale + codec.offset;
        return result >= codec.offset && holds(dtype, result, false);
    }
    const i8 scale = (i8)codec.scale;
    u8 quotient = 0 - word;  // what -1 gives, which a processor may refuse to divide the lowest number by
    if (scale != -1) {
        if ((i8)word % scale) return false;
        quotient = (u8)((i8)word / scale);
    }
    result = quotient + codec.offset;
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
    const bool is_finite = !is_float(from) || floating(from, word) - floating(from, word) == 0;
    return !is_finite || floating(to, result) - floating(to, result) == 0;
}

__device__ inline bool decode(const DType& from, u8 word, const DType& to, const Codec& codec, u8& result)
{
    switch (codec.rule) {
    case scaled: return decode_scaled(from, word, to, codec, result);
    case scaled_integer: return decode_integer(from, word, codec, result);
    case cast_value: return decode_value(from, word, to, codec, result);
    default: return convert(from, word, to, result);
    }
}

extern "C" __global__ void elements(u8 table, u8 n, u8 tiles_per_chunk, u8 n_elements, u8 codec_address, u8 flags)
{
    const u4 row = blockIdx.x / (u4)tiles_per_chunk, tile = blockIdx.x % (u4)tiles_per_chunk;
    const u8* const column = (const u8*)table + row;
    const u8 encoded = column[0], decoded = column[n];
    const Codec& codec = *(const Codec*)codec_address;
    const DType from = dtype_of(codec.encoded), to = dtype_of(codec.decoded);
    bool all_decoded = true;
#pragma unroll 1
    for (u4 item = 0; item < 16; ++item) {
        const u4 at = (tile * 16 + item) * blockDim.x + threadIdx.x;
        if (at >= n_elements) break;
        u8 result = 0;
        all_decoded &= decode(from, load(from, encoded, at), to, codec, result);
        store(to, decoded, at, result);
    }
    if (!all_decoded) ((u8*)flags)[row] = 1;
}
