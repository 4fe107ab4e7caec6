// One element on its way from a decoded chunk to the result: swap bytes, convert, mask, scale, add.
//
// Included by the kernels that place elements, compiled for one pair of STORED and RESULT each. With COPY, these are the
// same unsigned type and may cover several elements; only bytes are swapped then.
//
// Values equal NumPy's on x86-64 bit for bit, NaN payloads included.
// NumPy: values = stored.astype(result); hit = values == mask; values *= scale; values += offset; values[hit] = nan
// Where an element and a constant are both NaN, NumPy keeps the payload of either; here it is that of the element.

#include "numbers.cuh"

#define SHARE_OUT(i, n) if (const u4 i = threadIdx.x; i < (n))
#define BLOCK_BARRIER() __syncthreads()

// Fields of `elements.ElementCast.words`.
struct Cast {
    u8 swap_nbytes, n_mask;
    const RESULT* mask;
    u8 has_scale, has_offset, scale, offset;
    const STORED* missing;  // if not null, stands for every stored element
};

#ifdef COPY

__device__ inline u16 swapped(u16 unit, u4 nbytes)
{
    return u16{swapped(unit.low, nbytes), swapped(unit.high, nbytes)};
}

__device__ inline RESULT cast_element(STORED stored, const Cast& cast)
{
    return cast.swap_nbytes ? (RESULT)swapped(stored, (u4)cast.swap_nbytes) : stored;
}

#else

template <class R, bool is_float = Kind<R>::is_float> struct Arithmetic {  // no integer result has any
    static __device__ R apply(R value, const Cast&) { return value; }
};
template <class R> struct Arithmetic<R, true> {
    static __device__ R apply(R value, const Cast& cast)
    {
        typedef typename Unsigned<sizeof(R)>::type Bits;
        const Bits unscaled = bits<Bits>(value);
        if (cast.has_scale) value = product(value, bits<R>((Bits)cast.scale));
        if (cast.has_offset) value = sum(value, bits<R>((Bits)cast.offset));
#pragma unroll 1
        for (u4 i = 0; i < (u4)cast.n_mask; ++i)
            if (is_equal(unscaled, bits<Bits>(cast.mask[i]))) value = bits<R>((Bits)Float<Bits>::nan);
        return value;
    }
};

__device__ inline RESULT cast_element(STORED stored, const Cast& cast)
{
    typedef typename Unsigned<sizeof(STORED)>::type Bits;
    if (cast.swap_nbytes) stored = bits<STORED>((Bits)swapped((u8)bits<Bits>(stored), (u4)cast.swap_nbytes));
    return Arithmetic<RESULT>::apply(As<RESULT>::from(stored), cast);
}

#endif
