// Turn an element of a decoded chunk into an element of the result: swap bytes, convert, mask, scale, add.
//
// The kernels that place elements include this file. Each is compiled for one pair of types, STORED and RESULT. With COPY,
// both are the same unsigned type, which may cover several elements, and only bytes are swapped. With WORK, values are
// masked and scaled in the type WORK, and then rounded to RESULT once; without it, in RESULT.
//
// Values equal NumPy's on x86-64 bit for bit, including NaN payloads.
// NumPy: values = stored.astype(result); hit = values == mask; values *= scale; values += offset; values[hit] = nan
// If an element and a constant are both NaN, NumPy keeps the payload of either one. This code keeps the element's.

#include "numbers.cuh"
#include "order.cuh"

#ifdef WORK
typedef WORK Work;
#else
typedef RESULT Work;
#endif

// Fields of `cast.ElementCast.words`.
struct Cast {
    u8 swap_nbytes, n_mask;
    const Work* mask;
    u8 has_scale, has_offset, scale, offset;
    const STORED* missing;  // if not null, the fill value, used in place of every stored element
};

#ifdef COPY

template <u4 n> __device__ inline void cast_elements(const STORED (&stored)[n], RESULT (&result)[n], const Cast& cast)
{
    const Order order = order_of((u4)cast.swap_nbytes);
#pragma unroll
    for (u4 i = 0; i < n; ++i) result[i] = ordered(stored[i], order);
}

#else

__device__ inline f2 rounded_product(f2 a, f2 b) { return As<f2>::from(rounded_product(as_f4(a), as_f4(b))); }

// Mask, scale and add. GPUs lose the payload of a NaN. So if any of a thread's results is NaN or infinite, slower code that
// keeps payloads computes all of them again.
template <class R> struct Arithmetic {  // results that are integers have no arithmetic
    template <u4 n> static __device__ void apply(R (&)[n], const Cast&) {}
};
template <class R, class Bits> struct FloatArithmetic {
    // The upper half of an f8, without its lower `drop` bits, is enough to tell whether it is NaN or infinite.
    static constexpr u4 drop = 8 * sizeof(Bits) - (sizeof(Bits) == 2 ? 16 : 32);
    static constexpr u4 infinity = (u4)(Float<Bits>::infinity >> drop);

    static __device__ u4 magnitude(R value)
    {
        return (u4)(bits<Bits>(value) >> drop) & (u4)((Float<Bits>::sign - 1) >> drop);
    }

    // Return a scaled value, with the payload that NumPy gives if it is NaN.
    static __device__ R with_payloads(R value, const Cast& cast)
    {
        if (cast.has_scale) value = product(value, bits<R>((Bits)cast.scale));
        if (cast.has_offset) value = sum(value, bits<R>((Bits)cast.offset));
        return value;
    }

    template <u4 n> static __device__ void mask(R (&value)[n], const R (&unscaled)[n], const Cast& cast)
    {
#pragma unroll 1
        for (u4 j = 0; j < (u4)cast.n_mask; ++j) {
            const Bits masked = bits<Bits>(cast.mask[j]);
            if (is_nan(masked)) continue;  // equals no value
            // All bits are compared, but not the sign of a zero.
            const Bits magnitude = Float<Bits>::sign - 1, compared = masked & magnitude ? (Bits)~(Bits)0 : magnitude;
#pragma unroll
            for (u4 i = 0; i < n; ++i)
                if (!((bits<Bits>(unscaled[i]) ^ masked) & compared)) value[i] = bits<R>((Bits)Float<Bits>::nan);
        }
    }

    template <u4 n> static __device__ void scale(R (&value)[n], const R (&unscaled)[n], const Cast& cast)
    {
        const R factor = bits<R>((Bits)cast.scale), summand = bits<R>((Bits)cast.offset);
        u4 greatest = 0;
        if (cast.has_scale) {
#pragma unroll
            for (u4 i = 0; i < n; ++i) value[i] = rounded_product(value[i], factor);
        }
        if (cast.has_offset) {
#pragma unroll
            for (u4 i = 0; i < n; ++i) value[i] = rounded_sum(value[i], summand);
        }
#pragma unroll
        for (u4 i = 0; i < n; ++i) greatest = magnitude(value[i]) > greatest ? magnitude(value[i]) : greatest;
        if (greatest < infinity) return;  // none is NaN or infinite
#pragma unroll
        for (u4 i = 0; i < n; ++i) value[i] = with_payloads(unscaled[i], cast);
    }

    template <u4 n> static __device__ void apply(R (&value)[n], const Cast& cast)
    {
        R unscaled[n];
#pragma unroll
        for (u4 i = 0; i < n; ++i) unscaled[i] = value[i];
        if (cast.has_scale || cast.has_offset) scale(value, unscaled, cast);
        mask(value, unscaled, cast);
    }
};
template <> struct Arithmetic<f2> : FloatArithmetic<f2, u2> {};
template <> struct Arithmetic<f4> : FloatArithmetic<f4, u4> {};
template <> struct Arithmetic<f8> : FloatArithmetic<f8, u8> {};

template <u4 n> __device__ inline void cast_elements(const STORED (&stored)[n], RESULT (&result)[n], const Cast& cast)
{
    typedef typename Unsigned<sizeof(STORED)>::type Bits;
    const Order order = order_of((u4)cast.swap_nbytes);
#ifdef WORK
    Work value[n];
#else
    Work (&value)[n] = result;
#endif
#pragma unroll
    for (u4 i = 0; i < n; ++i) value[i] = As<Work>::from(bits<STORED>(ordered(bits<Bits>(stored[i]), order)));
    Arithmetic<Work>::apply(value, cast);
#ifdef WORK
#pragma unroll
    for (u4 i = 0; i < n; ++i) result[i] = As<RESULT>::from(value[i]);
#endif
}

#endif
