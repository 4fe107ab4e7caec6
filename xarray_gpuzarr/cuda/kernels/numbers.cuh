// Number types with NumPy's names, and arithmetic and conversions that equal NumPy's on x86-64 bit for bit.
//
// A type's name is its kind and its width in BYTES, so u8 has 64 bits. Every step is rounded on its own. Denormals are kept
// even if the compiler was told to flush those of 32 bits, which takes assembly and integer arithmetic. NaN payloads are
// kept as x86 keeps them.
// The conversion of a floating value to an integer type that cannot hold it is undefined, as in NumPy and C.

typedef signed char i1;
typedef short i2;
typedef int i4;
typedef long long i8;
typedef unsigned char u1;
typedef unsigned short u2;
typedef unsigned int u4;
typedef unsigned long long u8;
typedef float f4;
typedef double f8;
struct alignas(16) u16 { u8 low, high; };
struct b1 { u1 byte; };
struct f2 { u2 bits; };

// Return a number of type To that has the bits of `value`.
template <class To, class From> __device__ inline To bits(From value)
{
    static_assert(sizeof(To) == sizeof(From), "bits of different width");
    union { From from; To to; } both;
    both.from = value;
    return both.to;
}

// Return a word with its lowest `nbytes` bytes reversed. `nbytes` is 2, 4 or 8, and bytes above them are 0.
__device__ inline u8 swapped(u8 word, u4 nbytes)
{
    word = (word & 0x00ff00ff00ff00ffull) << 8 | (word >> 8 & 0x00ff00ff00ff00ffull);
    if (nbytes >= 4) word = (word & 0x0000ffff0000ffffull) << 16 | (word >> 16 & 0x0000ffff0000ffffull);
    if (nbytes >= 8) word = word << 32 | word >> 32;
    return word;
}

template <int nbytes> struct Unsigned;
template <> struct Unsigned<1> { typedef u1 type; };
template <> struct Unsigned<2> { typedef u2 type; };
template <> struct Unsigned<4> { typedef u4 type; };
template <> struct Unsigned<8> { typedef u8 type; };

// Number of bits in the significand, without its hidden bit, of the floating type with as many bits as Bits.
template <class Bits> struct Significand;
template <> struct Significand<u2> { static constexpr int width = 10; };
template <> struct Significand<u4> { static constexpr int width = 23; };
template <> struct Significand<u8> { static constexpr int width = 52; };

// Constants of the floating type with as many bits as Bits: `sign` and `quiet` are the bits of these names.
template <class Bits> struct Float {
    static constexpr int width = Significand<Bits>::width;
    static constexpr Bits sign = (Bits)((Bits)1 << (8 * sizeof(Bits) - 1));
    static constexpr Bits quiet = (Bits)((Bits)1 << (width - 1));
    static constexpr Bits infinity = (Bits)((Bits)(sign - 1) >> width << width);
    static constexpr Bits nan = infinity | quiet;
};

template <class Bits> __device__ inline bool is_nan(Bits x)
{
    return (x & (Float<Bits>::sign - 1)) > Float<Bits>::infinity;
}

// Compare the halves: newer compilers turn a comparison of all 64 bits into one of floating numbers.
template <> __device__ inline bool is_nan(u8 x)
{
    const u4 high = (u4)(x >> 32) & 0x7fffffffu, low = (u4)x;
    return (high | (low != 0)) > (u4)(Float<u8>::infinity >> 32);
}

// ---- arithmetic, with one rounding in each function

__device__ inline f4 rounded_product(f4 a, f4 b)
{
    f4 r;
    asm("mul.rn.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
    return r;
}
__device__ inline f8 rounded_product(f8 a, f8 b)
{
    f8 r;
    asm("mul.rn.f64 %0, %1, %2;" : "=d"(r) : "d"(a), "d"(b));
    return r;
}
__device__ inline f4 rounded_sum(f4 a, f4 b)
{
    f4 r;
    asm("add.rn.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
    return r;
}
__device__ inline f8 rounded_sum(f8 a, f8 b)
{
    f8 r;
    asm("add.rn.f64 %0, %1, %2;" : "=d"(r) : "d"(a), "d"(b));
    return r;
}
__device__ inline f4 rounded_quotient(f4 a, f4 b)
{
    f4 r;
    asm("div.rn.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
    return r;
}
__device__ inline f8 rounded_quotient(f8 a, f8 b)
{
    f8 r;
    asm("div.rn.f64 %0, %1, %2;" : "=d"(r) : "d"(a), "d"(b));
    return r;
}
__device__ inline f4 narrowed(f8 a)
{
    f4 r;
    asm("cvt.rn.f32.f64 %0, %1;" : "=f"(r) : "d"(a));
    return r;
}
__device__ inline f8 widened(f4 a)
{
    f8 r;
    asm("cvt.f64.f32 %0, %1;" : "=d"(r) : "f"(a));
    return r;
}

// Return `result`, computed from `a` and `b`. If it is NaN, give it the payload that x86 would: that of the first operand
// that is NaN, or none and a negative sign if neither is. GPUs lose payloads.
template <class F, class Bits> __device__ inline F with_payload(F result, F a, F b)
{
    if (!is_nan(bits<Bits>(result))) return result;
    if (is_nan(bits<Bits>(a))) return bits<F>((Bits)(bits<Bits>(a) | Float<Bits>::quiet));
    if (is_nan(bits<Bits>(b))) return bits<F>((Bits)(bits<Bits>(b) | Float<Bits>::quiet));
    return bits<F>((Bits)(Float<Bits>::nan | Float<Bits>::sign));
}

__device__ inline f4 product(f4 a, f4 b) { return with_payload<f4, u4>(rounded_product(a, b), a, b); }
__device__ inline f8 product(f8 a, f8 b) { return with_payload<f8, u8>(rounded_product(a, b), a, b); }
__device__ inline f4 sum(f4 a, f4 b) { return with_payload<f4, u4>(rounded_sum(a, b), a, b); }
__device__ inline f8 sum(f8 a, f8 b) { return with_payload<f8, u8>(rounded_sum(a, b), a, b); }
__device__ inline f4 quotient(f4 a, f4 b) { return with_payload<f4, u4>(rounded_quotient(a, b), a, b); }
__device__ inline f8 quotient(f8 a, f8 b) { return with_payload<f8, u8>(rounded_quotient(a, b), a, b); }

// ---- conversion; between f4 and f8, as on x86, a NaN becomes quiet, and keeps its sign and the upper bits of its payload

__device__ inline f4 as_f4(f8 x)
{
    const u8 b = bits<u8>(x);
    if (is_nan(b)) return bits<f4>((u4)(b >> 32 & 0x80000000u) | Float<u4>::nan | (u4)(b >> 29 & 0x007fffffu));
    return narrowed(x);
}

__device__ inline f8 as_f8(f4 x)
{
    const u4 b = bits<u4>(x);
    if (is_nan(b)) return bits<f8>((u8)(b & 0x80000000u) << 32 | Float<u8>::nan | (u8)(b & 0x007fffffu) << 29);
    return widened(x);
}

// NumPy converts halves as integers, so a signalling NaN stays one.
__device__ inline f4 as_f4(f2 x)
{
    const u4 sign = (u4)(x.bits & 0x8000u) << 16, magnitude = x.bits & 0x7fffu;
    if (magnitude >= 0x7c00u) return bits<f4>(sign | Float<u4>::infinity | (magnitude & 0x03ffu) << 13);
    if (magnitude >= 0x0400u) return bits<f4>(sign | ((magnitude << 13) + (112u << 23)));  // exponents differ by 127 - 15
    if (magnitude == 0) return bits<f4>(sign);
    return bits<f4>(sign | (bits<u4>((f4)magnitude) - (24u << 23)));  // denormal: magnitude * 2^-24
}

__device__ inline f8 as_f8(f2 x)
{
    const u8 sign = (u8)(x.bits & 0x8000u) << 48, magnitude = x.bits & 0x7fffu;
    return magnitude > 0x7c00u ? bits<f8>(sign | Float<u8>::infinity | (magnitude & 0x03ffu) << 42) : as_f8(as_f4(x));
}

// Round to nearest, ties to even, directly from 32 or 64 bits. A NaN keeps the upper bits of its payload; if these are 0, it
// gets the payload 1, so as not to become infinite.
template <class Bits> __device__ inline f2 rounded_to_half(Bits x)
{
    typedef Float<Bits> From;
    constexpr int bias = sizeof(Bits) == 4 ? 127 : 1023, drop = From::width - 10;  // drop: bits that a half has no place for
    const u2 sign = (u2)(x >> (8 * sizeof(Bits) - 16) & 0x8000u);
    const int exponent = (int)(x >> From::width) & (2 * bias + 1);
    if (is_nan(x)) {
        const u2 payload = (u2)(x >> drop & 0x03ffu);
        return f2{(u2)(sign | 0x7c00u | (payload ? payload : 1u))};
    }
    const Bits unit = (Bits)1 << drop;  // the lowest bit of a half
    if (exponent >= bias + 16) return f2{(u2)(sign | 0x7c00u)};  // 2^16 or more becomes infinite
    if (exponent >= bias - 14) {
        // A carry out of the significand increases the exponent, as it must, up to infinity.
        const Bits rounded = x + (unit / 2 - 1) + (x >> drop & 1);
        return f2{(u2)(sign | (u2)((rounded >> drop) - ((Bits)(bias - 15) << 10)))};
    }
    // Below 2^-14, halves are multiples of 2^-24: shift the significand, by one bit at least, to that unit.
    const int shift = bias - 1 - exponent + (From::width - 23);
    if (shift > From::width + 1) return f2{sign};  // less than half of 2^-24
    const Bits significand = (x & (((Bits)1 << From::width) - 1)) | (Bits)1 << From::width;
    const Bits rounded = significand + (((Bits)1 << (shift - 1)) - 1) + (significand >> shift & 1);
    return f2{(u2)(sign | (u2)(rounded >> shift))};
}

template <class T> struct Kind { static constexpr bool is_float = false; };
template <> struct Kind<f2> { static constexpr bool is_float = true; };
template <> struct Kind<f4> { static constexpr bool is_float = true; };
template <> struct Kind<f8> { static constexpr bool is_float = true; };

template <class R> struct As {  // for integers; f2 and f4 are converted to f8 first, which is exact
    template <class S> static __device__ R from(S x) { return (R)x; }
    static __device__ R from(b1 x) { return (R)(x.byte != 0); }
    static __device__ R from(f2 x) { return (R)as_f8(x); }
    static __device__ R from(f4 x) { return (R)as_f8(x); }
};
template <> struct As<b1> {
    template <class S> static __device__ b1 from(S x) { return b1{(u1)(x != 0)}; }
    static __device__ b1 from(f2 x) { return b1{(u1)((x.bits & 0x7fffu) != 0)}; }
    static __device__ b1 from(f4 x) { return b1{(u1)((bits<u4>(x) & 0x7fffffffu) != 0)}; }
};
template <> struct As<f4> {
    template <class S> static __device__ f4 from(S x) { return (f4)x; }
    static __device__ f4 from(b1 x) { return (f4)(x.byte != 0); }
    static __device__ f4 from(f2 x) { return as_f4(x); }
    static __device__ f4 from(f4 x) { return x; }
    static __device__ f4 from(f8 x) { return as_f4(x); }
};
template <> struct As<f8> {
    template <class S> static __device__ f8 from(S x) { return (f8)x; }
    static __device__ f8 from(b1 x) { return (f8)(x.byte != 0); }
    static __device__ f8 from(f2 x) { return as_f8(x); }
    static __device__ f8 from(f4 x) { return as_f8(x); }
    static __device__ f8 from(f8 x) { return x; }
};
template <> struct As<f2> {  // NumPy converts integers to f4 first
    template <class S> static __device__ f2 from(S x) { return rounded_to_half(bits<u4>(As<f4>::from(x))); }
    static __device__ f2 from(f8 x) { return rounded_to_half(bits<u8>(x)); }
    static __device__ f2 from(f2 x) { return x; }
};

__device__ inline f2 product(f2 a, f2 b) { return As<f2>::from(product(as_f4(a), as_f4(b))); }
__device__ inline f2 rounded_sum(f2 a, f2 b) { return As<f2>::from(rounded_sum(as_f4(a), as_f4(b))); }
__device__ inline f2 sum(f2 a, f2 b) { return As<f2>::from(sum(as_f4(a), as_f4(b))); }
__device__ inline f2 quotient(f2 a, f2 b) { return As<f2>::from(quotient(as_f4(a), as_f4(b))); }
