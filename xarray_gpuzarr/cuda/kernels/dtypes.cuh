// Load, store and convert elements of a dtype that is known only at run time. All threads of a launch take the same branch.
//
// In a register, an element is a word of 64 bits. Signed integers are sign-extended, other elements have zeros above them.

#include "numbers.cuh"

struct DType {  // fields of `filters.dtype_word`
    u4 nbytes;
    u1 kind, is_swapped;  // kind: as `numpy.dtype.kind`
};

__device__ inline bool is_float(const DType& dtype) { return dtype.kind == 'f'; }

__device__ inline DType dtype_of(u8 word) { return DType{(u4)word & 0xff, (u1)(word >> 8), (u1)(word >> 16)}; }

// Return element `at` of an array as a word.
__device__ inline u8 load(const DType& dtype, u8 address, u4 at)
{
    u8 word = 0;
    switch (dtype.nbytes) {
    case 1: word = ((const u1*)address)[at]; break;
    case 2: word = ((const u2*)address)[at]; break;
    case 4: word = ((const u4*)address)[at]; break;
    case 8: word = ((const u8*)address)[at]; break;
    }
    if (dtype.is_swapped) word = swapped(word, dtype.nbytes);
    if (dtype.kind == 'b') return word != 0;
    const u4 above = 64 - 8 * dtype.nbytes;
    return dtype.kind == 'i' ? (u8)((i8)(word << above) >> above) : word;
}

__device__ inline void store(const DType& dtype, u8 address, u4 at, u8 word)
{
    if (dtype.is_swapped) word = swapped(word, dtype.nbytes);
    switch (dtype.nbytes) {
    case 1: ((u1*)address)[at] = (u1)word; break;
    case 2: ((u2*)address)[at] = (u2)word; break;
    case 4: ((u4*)address)[at] = (u4)word; break;
    case 8: ((u8*)address)[at] = word; break;
    }
}

// Return a floating element as f8, which represents all of them exactly.
__device__ inline f8 floating(const DType& dtype, u8 word)
{
    if (dtype.nbytes == 2) return as_f8(f2{(u2)word});
    return dtype.nbytes == 4 ? as_f8(bits<f4>((u4)word)) : bits<f8>(word);
}

// Return any number as F.
template <class F> __device__ inline F number(const DType& dtype, u8 word)
{
    if (!is_float(dtype) && dtype.nbytes < 8)  // fewer instructions than for 8 bytes
        return dtype.kind == 'i' ? As<F>::from((i4)word) : As<F>::from((u4)word);
    if (!is_float(dtype)) return dtype.kind == 'i' ? As<F>::from((i8)word) : As<F>::from(word);
    if (dtype.nbytes == 2) return As<F>::from(f2{(u2)word});
    if (dtype.nbytes == 4) return As<F>::from(bits<f4>((u4)word));
    return As<F>::from(bits<f8>(word));
}

// Return any number as an element of a floating dtype.
__device__ inline u8 as_floating(const DType& from, u8 word, const DType& to)
{
    if (to.nbytes == 2) return number<f2>(from, word).bits;
    if (to.nbytes == 4) return bits<u4>(number<f4>(from, word));
    return bits<u8>(number<f8>(from, word));
}

// Whether an integer dtype can represent `value`, a number without a fraction. False for NaN.
__device__ inline bool holds(const DType& dtype, f8 value)
{
    // The smallest power of two above all integers of the dtype, made of its exponent.
    const f8 beyond = bits<f8>((u8)(1023 + 8 * dtype.nbytes - (dtype.kind == 'i')) << 52);
    return value < beyond && value >= (dtype.kind == 'i' ? -beyond : 0.0);
}

// Whether an integer dtype can represent an integer of 64 bits, which is signed or not.
__device__ inline bool holds(const DType& dtype, u8 word, bool is_signed)
{
    const bool is_negative = is_signed && (i8)word < 0;
    if (dtype.kind == 'i') {
        const u8 magnitude = is_negative ? ~word : word;  // -n - 1 for a negative n, so that the lowest number fits
        return !(magnitude >> (8 * dtype.nbytes - 1));
    }
    return !is_negative && (dtype.nbytes == 8 || !(word >> 8 * dtype.nbytes));
}
